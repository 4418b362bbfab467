from dataclasses import dataclass, field


@dataclass
class Validation:
    dataset: str = "c4_validation"
    local_batch_size: int = 8
    seq_len: int = 2048
    freq: int = 10
    steps: int = 1200


@dataclass
class JobConfig:
    validation: Validation = field(default_factory=Validation)
