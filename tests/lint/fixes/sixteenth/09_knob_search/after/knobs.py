from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Knobs:
    tile: int
    split: int
    stages: int

    @property
    def label(self):
        return f"tile{self.tile}-split{self.split}-stages{self.stages}"


def candidates():
    return [Knobs(*combo) for combo in product((256, 512, 1024), (1, 2, 4), (1, 2))]
