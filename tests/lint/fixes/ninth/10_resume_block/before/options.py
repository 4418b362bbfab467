from dataclasses import dataclass


@dataclass
class Options:
    save_folder: str = "runs/vl"
    lr: float = 3e-5
    max_steps: int = 30000
    save_every: int = 1000
    allow_resume: bool = True
    width: int = 2048
    depth: int = 24
    batch: int = 4
