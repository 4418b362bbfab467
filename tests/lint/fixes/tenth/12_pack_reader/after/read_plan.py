import os
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadPlan:
    slices: bool
    piece: int


def read_plan():
    wanted = os.environ.get("PACK_PARALLEL_READ", "1") != "0"
    piece = int(os.environ.get("PACK_PIECE_BYTES", str(64 << 20)))
    return ReadPlan(slices=wanted and hasattr(os, "pread"), piece=piece)
