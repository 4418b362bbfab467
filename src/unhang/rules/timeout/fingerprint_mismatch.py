"""Rule: DETAIL mode saw the ranks make different calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from unhang.analyze.fingerprints import Fingerprint, fingerprints
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import BUCKET_ELEMENTS, are_far_apart, minority
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import EVERY_RANK_CALLS, SEE_IT

_HEAD = "RuntimeError: Detected mismatch between collectives on ranks. "
_ONE = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=x)"


def printed(*prints: tuple[int, int, str, str]) -> str:
    """What torch prints, for examples: (rank, seq, op, shape)."""
    return _HEAD + ", but ".join(_ONE.format(*p) for p in prints)


def is_other_tensor(found: Iterable[Fingerprint]) -> bool:
    """Whether sizes differ because another bucket or shard is meant: flat and large, as only DDP and FSDP make them."""
    prints = tuple(found)
    if not all(len(f.shape) == 1 for f in prints):
        return False
    sizes = [f.shape[0] for f in prints]
    is_gathered = any(f.op == "ALLGATHER" for f in prints)  # a program's own results may differ as much
    return min(sizes) >= BUCKET_ELEMENTS or (are_far_apart(sizes) and not is_gathered)


class FingerprintMismatch(Rule):
    """The ranks were about to make different collectives, as TORCH_DISTRIBUTED_DEBUG=DETAIL shows.

    What it detects:
        "Detected mismatch between collectives" with different operations, or with gradient buckets of other size; or of one rank
        only, where the other side is not printed.

    Why it hangs:
        One rank took another branch and made a call more, or less, or another one.

    How to confirm:
        The traceback of each rank shows the line. If the sequence numbers differ, the programs parted earlier than here.

    How to fix:
        Decide once for all ranks; make collective calls (checkpoint, metric, logging with sync) on every rank.

    Sources:
        torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp.
    """

    id = "fingerprint-mismatch"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(log_case(printed((1, 31, "BARRIER", ""), (0, 31, "GATHER", "4"))), ()),
        Fires(log_case(printed((1, 3104, "ALLREDUCE", "195812480"), (0, 3104, "ALLREDUCE", "51123456"))), ()),
        Fires(log_case(printed((2, 8372, "BROADCAST", "24084544"), (0, 8372, "BROADCAST", "64"))), ()),
        Fires(log_case(printed((2, 152517, "BROADCAST", "1"))), ()),
        Quiet(
            log_case(printed((0, 5, "ALLGATHER", "41, 256"), (1, 5, "ALLGATHER", "40, 256"))),
            "another size of the same",
        ),
        Quiet(log_case("INFO mismatch between collectives of the plan: none"), "no fingerprint"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the calls that were compared."""
        found = fingerprints(s.events)
        if not found:
            return
        ops = {rank: f.op for rank, f in found.items()}
        is_alone = len(found) == 1
        if (
            len(set(ops.values())) < 2
            and not is_alone
            and not (_sizes_differ(found) and is_other_tensor(found.values()))
        ):
            return
        odd = minority({r: (f.op, f.shape) for r, f in found.items()})
        sides = ", ".join(f"rank {r} {f}" for r, f in sorted(found.items())[:4])
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"the ranks were about to make different calls: {sides}"
            + (" (the other side is not in the log)" if is_alone else ""),
            confidence=0.65 if is_alone else 0.9,
            culprit_ranks=odd,
            victim_ranks=tuple(r for r in found if r not in odd) if odd else (),
            because=_because(found, is_alone),
            collective={"op": next(iter(found.values())).op, "seq": next(iter(found.values())).seq},
            evidence=quote(f.event for f in found.values()),
            fixes=(EVERY_RANK_CALLS, SEE_IT),
        )


def _sizes_differ(found: Mapping[int, Fingerprint]) -> bool:
    return len({(f.shape, f.dtype) for f in found.values()}) > 1


def _because(found: Mapping[int, Fingerprint], is_alone: bool) -> str:
    if is_alone:
        return "torch compared the calls before they were made and found that they differ; only one side of it is in the log."
    if len({f.op for f in found.values()}) > 1:
        return f"{w.name_ranks(sorted(found))} were at the same point of the group with different operations."
    return "The same operation, but on other buckets, shards or buffers: other modules took part in this step on some ranks."
