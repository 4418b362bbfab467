"""What a name says of the process it is in: the main one, its number, its number on the node. Imports nothing heavy."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unhang.model import Gate

_ZERO = (
    r"(?:is_|on_|am_)?(?:global_|world_)?(?:main|master|primary|chief)_(?:process|proc|rank|worker|ordinal|replica)"
    r"|(?:is_)?(?:rank_?(?:zero|0)|zero_rank|rank_zero_only|(?:global|world)_(?:process_)?zero|chief)"
    r"|(?:is|am|on|only_on)_(?:main|master|primary|main_process|first_process|first_rank|rank_?0)|(?:main_process|master|main|primary)_only|master"
)
_LOCAL_ZERO = (
    r"(?:is_|on_)?local_(?:main|master)(?:_(?:process|proc|rank|worker))?(?:_only)?"
    r"|(?:is_)?local_(?:process_)?zero|(?:is_)?local_rank_?(?:zero|0)"
)
_PARALLEL = r"(?:data|tensor|model|tensor_model|pipeline|pipeline_model|context|expert|sequence)_parallel"
_VOCABULARY = {
    "zero": _ZERO,
    "local zero": _LOCAL_ZERO,
    "last": r"(?:is|on)_last_(?:process|rank)",
    "rank": r"(?:(?:global|world|dist|ddp|my|this|cur|current|proc|process|trainer)_)?rank(?:_id)?|(?:global_)?process_index|ompi_comm_world_rank|pmi_rank|slurm_procid",
    "local": r"(?:node_)?local_(?:process_)?rank(?:_id)?|local_process_index|ompi_comm_world_local_rank|slurm_localid",
    "other": rf"(?:node|group|dp|tp|pp|cp|ep|sp|mp|{_PARALLEL})_rank",
    "world": r"world_size|num_processes|num_ranks|n_ranks",
}

_OWN = ("zero", "local zero", "last", "rank", "local")


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {kind: re.compile(pattern) for kind, pattern in _VOCABULARY.items()}


@cache
def kind_of_name(name: str) -> str | None:
    """Which of the vocabulary a name is: zero, local zero, last, rank, local, other, world; None: it says nothing."""
    plain = name.lower().lstrip("_").removeprefix("get_")
    return next((kind for kind, pattern in _patterns().items() if pattern.fullmatch(plain)), None)


def asks_for_the_rank(gate: Gate) -> bool:
    """Whether a condition itself names the rank; not one that only follows from it, somewhere."""
    if gate.only_zero:
        return True
    try:
        nodes = list(ast.walk(ast.parse(gate.text, mode="eval")))
    except (SyntaxError, ValueError):
        return False
    names = [n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)]
    return gate.by_rank and any(kind_of_name(name) in _OWN for name in names)
