"""How rules say things: ranks, calls, locations and the two sides of a difference, always in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unhang.analyze.callpath import Path, show
from unhang.analyze.divergence import Divergence
from unhang.analyze.positions import bare_op
from unhang.analyze.source import line_text
from unhang.model import (
    CollectiveCall,
    EvidenceLine,
    Frame,
    Location,
    ProcessGroup,
    RankEvidence,
    WaitEdge,
    user_frames,
)

_MOST_RANGES = 12


def ranges(ranks: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2, 5`."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in parts[:_MOST_RANGES])
    left_out = sum(b - a + 1 for a, b in parts[_MOST_RANGES:])
    return f"{shown} and {left_out} more" if left_out else shown


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 2` or `ranks 0-2, 5`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The verb form for one rank or several."""
    return one if len(ranks) == 1 else many


def group_of(group: ProcessGroup) -> dict[str, str]:
    """The group as the report names it."""
    return {"pg_name": group.name, "pg_desc": group.desc}


def collective_of(call: CollectiveCall, seq: int) -> dict[str, Any]:
    """A call as the report names it."""
    return {"op": bare_op(call.op), "seq": seq, "sizes": [list(s) for s in call.in_sizes], "dtype": call.dtype}


def name_call(call: CollectiveCall) -> str:
    """`all_reduce(8x4 Float)`."""
    return f"{bare_op(call.op)}{str(call)[len(call.op) :]}"


def place(frame: Frame | None) -> str:
    """`evaluate (train.py:41)`."""
    return f"{frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})" if frame else "an unknown line"


def code_line(frame: Frame | None, source: str) -> list[EvidenceLine]:
    """The source text of a frame as evidence, where it can be read."""
    text = line_text(frame.file, frame.line) if frame else ""
    return [EvidenceLine(source, f"{place(frame)}: {text}", frame.line)] if frame and text else []


def stack_lines(evidence: RankEvidence | None, most: int = 6) -> list[EvidenceLine]:
    """The user frames of a rank's main thread, innermost first."""
    stack = evidence.main_stack if evidence else None
    if evidence is None or stack is None:
        return []
    leaf = [f for f in stack.frames[:1] if not f.is_user]
    frames = [*leaf, *user_frames(stack.frames)[:most]]
    return [EvidenceLine(f"rank {evidence.rank} stack", str(f), f.line) for f in frames]


def path_line(rank: int, what: str, path: Path) -> EvidenceLine:
    """A call and the way to it."""
    return EvidenceLine(
        f"rank {rank} calls", f"{what} from {show(path)}" if path else what, path[-1].line if path else None
    )


def both_sides(d: Divergence) -> Iterable[EvidenceLine]:
    """The call of the odd ranks and that of their peers at a divergence."""
    yield path_line(d.odd[0], f"#{d.seq} {name_call(d.odd_call)}", d.odd_path)
    yield path_line(d.reference[0], f"#{d.seq} {name_call(d.reference_call)}", d.reference_path)


def location_of(frame: Frame | None) -> Location | None:
    """The location of a frame."""
    return Location.of(frame)


def waiting_line(edge: WaitEdge) -> EvidenceLine:
    """A wait as evidence."""
    targets = f"for {name_ranks(edge.targets)}" if edge.targets else ""
    return EvidenceLine(f"rank {edge.waiter} waits", f"{targets} in {edge.what}".strip())
