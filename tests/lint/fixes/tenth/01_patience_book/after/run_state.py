from dataclasses import dataclass, field
from typing import Optional


@dataclass
class RunState:
    rank: int
    epoch: int = 0
    epochs_without_gain: int = 0
    best_score: Optional[float] = None
    history: list = field(default_factory=list)


@dataclass
class FitPlan:
    max_epochs: int = 50
    patience: int = 3
    lr: float = 3e-4
    out_path: str = "best.pt"
