import math
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class BenchPlan:
    data_folder: str
    rank: int
    world_size: int
    batch_size: int = 16
    epochs: int = 2
    computation_time: float = 0.02
    checkpoint_every: int = 0
    read_threads: int = 2
    files: list = field(default_factory=list)

    def build(self):
        files = sorted(Path(self.data_folder).glob("*.npz"))
        per_rank = math.ceil(len(files) / self.world_size)
        start = self.rank * per_rank
        self.files = files[start:start + per_rank]
        return self

    @property
    def steps(self):
        return len(self.files) // self.batch_size
