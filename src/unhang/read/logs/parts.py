"""The parts into which engines divide their ranks, as the prefixes of their lines number them: tensor-parallel groups, replicas, stages of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unhang.read.logs.whose import Head

TAGS = re.compile(r"(?: (?:TP|DP|PP|EP|CP|SP|ATTN_DP|MOE_EP)\d{1,5})+(?=\])")
_TENSOR = re.compile(r"(?:^|[ _])TP(\d{1,5})(?:_(?:EP|DCP)\d+)*(?= |$)")
_STAGE = re.compile(r"(?:^|[ _])PP(\d{1,5})(?=[ _]|$)")
_LATER_REPLICA = re.compile(r"_DP[1-9]")
_PARTS_OF_ONE = "enable_dp_attention=True"
_LEAST_PARTS = 3


def read_tags(head: Head, tags: str) -> None:
    """Of SGLang, behind the time: " DP0 TP1 EP1"."""
    others = {part[:2] for part in tags.split()} - {"TP", "EP"}
    if others <= {"DP"} or others == {"PP"}:
        _read(head, tags)
        if head.tensor_rank is not None and others == {"DP"}:
            head.replica = int(tags.split(" DP")[1].split()[0])


def read_name(head: Head, name: str) -> None:
    """Of a process of vLLM: "Worker_PP1_TP0". In the second replica the numbers begin anew."""
    if not _LATER_REPLICA.search(name):
        _read(head, name)


def _read(head: Head, name: str) -> None:
    tensor, stage = _TENSOR.search(name), _STAGE.search(name)
    head.tensor_rank = int(tensor[1]) if tensor else None
    head.stage = int(stage[1]) if stage else None


def are_parts_of_one(heads: Sequence[Head]) -> bool:
    """Whether what is numbered as replicas shares one tensor-parallel group, so that no number in it comes twice."""
    replicas: dict[int, set[int]] = {}
    for head in heads:
        if head.replica is not None and head.tensor_rank is not None:
            replicas.setdefault(head.tensor_rank, set()).add(head.replica)
    if not replicas or any(len(of) > 1 for of in replicas.values()) or len(set.union(*replicas.values())) < 2:
        return False
    return len(replicas) >= _LEAST_PARTS or any(_PARTS_OF_ONE in head.body for head in heads)


def width_of_a_stage(heads: Iterable[Head]) -> int | None:
    """How many ranks a stage of a pipeline has: one where none is numbered within it, else all that one of them shows, if no other shows more."""
    stages: dict[int, set[int | None]] = {}
    for head in heads:
        if head.stage is not None:
            stages.setdefault(head.stage, set()).add(head.tensor_rank)
    seen = set.union(*stages.values()) if stages else set()
    if seen <= {None}:
        return 1 if seen else None
    return len(seen) if seen in stages.values() and seen == set(range(len(seen))) and len(seen) > 1 else None
