from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import List


@dataclass
class DistributedConfig:
    world_size: int = 1
    rank: int = 0
    tensor_parallel: int = 1


@dataclass
class ModelConfig:
    num_layers: int = 12
    hidden_size: int = 768
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def to_dict(self):
        return asdict(self)

    @classmethod
    def from_dict(cls, data):
        data = dict(data)
        data["distributed"] = DistributedConfig(**data["distributed"])
        return cls(**data)


def compare(a, b, prefix="") -> List[str]:
    """Names of the fields in which two configurations differ."""
    out = []
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if is_dataclass(x):
            out.extend(compare(x, y, f"{prefix}{f.name}."))
        elif x != y:
            out.append(f"{prefix}{f.name}")
    return out
