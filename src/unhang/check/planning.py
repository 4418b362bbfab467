"""The set-up that is judged: the one this process is part of, or one that is only planned (`--plan nodes=4,gpus=8`)."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.check.areas import Context
from unhang.errors import WrongUsage
from unhang.model import Reading

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_COUNTS = {
    "nodes": "nodes",
    "gpus": "gpus of each node; one rank per GPU",
    "ranks": "ranks on each node, where they are not as many as the GPUs",
    "workers": "loader workers of each rank",
    "threads": "threads of each rank (OMP_NUM_THREADS)",
    "prefetch": "batches that each worker loads ahead (prefetch_factor)",
    "cores": "cores of a node",
    "nofile": "descriptors that a process may open (ulimit -n)",
}
_SIZES = {"memory": "memory of a node", "shm": "size of /dev/shm of a node", "batch": "bytes of one batch"}
PLAN_KEYS = {**_COUNTS, **_SIZES}


def parse_plan(text: str) -> dict[str, str]:
    """`nodes=4,gpus=8,shm=64M` as a table.

    Raises:
        WrongUsage: a name that no plan knows, or a value that is no number.
    """
    plan: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if name not in PLAN_KEYS:
            raise WrongUsage(f"--plan knows no {name!r}; it knows {', '.join(PLAN_KEYS)}")
        if amount(value, name in _SIZES) is None:
            raise WrongUsage(f"--plan {part}: {PLAN_KEYS[name]}, as a number" + (" (512M, 64G)" * (name in _SIZES)))
        plan[name] = value
    return plan


def amount(text: str, is_size: bool = True) -> int | None:
    """A whole number above zero, with K, M, G or T behind it where it is a size; None where it is none."""
    digits, unit = text.strip().upper().removesuffix("B").removesuffix("I"), 1
    if is_size and digits[-1:] in _UNITS:
        digits, unit = digits[:-1], _UNITS[digits[-1]]
    is_number = digits.isascii() and digits.isdecimal() and len(digits) < 16
    return (int(digits) * unit or None) if is_number else None


def setup_of(context: Context) -> Iterator[Reading]:
    """One reading `setup.job`: how many nodes, ranks, workers and threads. Fields of which nothing is known are None."""
    plan = {name: amount(value, name in _SIZES) for name, value in context.options.plan.items()}
    member = context.member
    alone = 1 if member.world_size == 1 else None
    ranks_per_node = plan.get("ranks") or plan.get("gpus") or member.local_world_size or alone
    nodes = plan.get("nodes") or member.nodes
    if not nodes and ranks_per_node:
        nodes = max(1, member.world_size // ranks_per_node)
    yield Reading(
        "setup.job",
        "plan" if plan else "here",
        {
            "nodes": nodes,
            "ranks_per_node": ranks_per_node,
            "world_size": nodes * ranks_per_node if nodes and ranks_per_node else member.world_size,
            "gpus_per_node": plan.get("gpus"),
            "workers": plan.get("workers") or context.options.workers,
            "threads": plan.get("threads") or amount(context.environ.get("OMP_NUM_THREADS", ""), is_size=False),
            "prefetch": plan.get("prefetch"),
            "batch_bytes": plan.get("batch"),
            "cores": plan.get("cores"),
            "memory_bytes": plan.get("memory"),
            "shm_bytes": plan.get("shm"),
            "nofile": plan.get("nofile"),
        },
    )
