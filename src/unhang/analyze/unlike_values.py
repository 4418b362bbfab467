"""Collectives in which the ranks meant different things and that completed all the same: another operation, another root, another type of equal size.

Neither NCCL nor gloo compares them. Nothing hangs there; the result is what none of them means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unhang.analyze.align import calls_at, majority, members_of
from unhang.analyze.callpath import Fork, fork_of, user_path
from unhang.analyze.positions import CallIndex, bare_op
from unhang.model import CallState, CollectiveCall
from unhang.numeric import np

_MOST_LOOKED_AT = 64
# Bytes of an element, by the names of the flight recorder.
_BYTES = {
    **{"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2},
    **{"Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1},
}


@dataclass(frozen=True)
class Unlike:
    """The first position of a kind (`reduce_op`, `root`, `dtype`), with what each member meant as far as that is known.

    `odd`: those who differ from the commonest value. `is_decided`: whether they are a minority whoever is unknown.
    """

    kind: str
    values: Mapping[int, str]
    calls: Mapping[int, CollectiveCall]
    reference: tuple[int, ...]
    odd: tuple[int, ...]
    is_decided: bool

    @property
    def call(self) -> CollectiveCall:
        """The call of the first of those who differ."""
        return self.calls[self.odd[0]]

    @property
    def fork(self) -> Fork | None:
        """Where the program of those who differ parts from that of the others, if they came there on two ways."""
        return fork_of(*(user_path(self.calls[ranks[0]].frames) for ranks in (self.reference, self.odd)))


def unlike_values(index: CallIndex) -> Iterator[Unlike]:
    """The first of each kind that all members have completed."""
    table = index.table
    if table.is_empty or not len(table):
        return
    for kind in ("reduce_op", "root", "dtype"):
        values = table[kind].astype(np.int64)
        found = (_unlike_at(index, kind, group, seq) for group, seq in index.unlike(values, _MOST_LOOKED_AT))
        first = min(filter(None, found), key=lambda u: u.call.created_ns, default=None)
        if first is not None:
            yield first


def _unlike_at(index: CallIndex, kind: str, group: int, seq: int) -> Unlike | None:
    calls = dict(calls_at(index, group, seq))
    members = members_of(index, group)
    if len({bare_op(c.op) for c in calls.values()}) > 1 or set(calls) != set(members):
        return None
    if any(c.state is not CallState.COMPLETED for c in calls.values()):
        return None
    if kind == "dtype":
        is_told_elsewhere = index.table.groups[group].backend != "gloo"  # that its calls differ
        if is_told_elsewhere or not _are_of_equal_length(calls):
            return None
    values = {r: text for r, call in calls.items() if (text := _text(call, kind))}
    reference, odd, has_majority = majority(values)
    unknown = len(members) - len(values)
    return Unlike(kind, values, calls, reference, odd, has_majority and len(reference) - len(odd) > unknown)


def _text(call: CollectiveCall, kind: str) -> str:
    if kind == "root":
        return "" if call.root is None else f"rank {call.root}"
    return call.reduce_op if kind == "reduce_op" else call.dtype


def _are_of_equal_length(calls: Mapping[int, CollectiveCall]) -> bool:
    """Whether the members' tensors take as many bytes, of types that are known."""
    sizes = {(c.in_sizes, _BYTES.get(c.dtype)) for c in calls.values()}
    return len(sizes) == 1 and None not in next(iter(sizes))
