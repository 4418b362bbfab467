"""Rule: the tracebacks of the waits that ran out come from different collectives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import ClassVar

from unhang.analyze.first_errors import SeenError, errors_of
from unhang.analyze.log_activity import failed_by_itself
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import minority
from unhang.model import EvidenceLine, Finding, Frame, user_frames
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.timeout.advice import EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, SEE_IT

_RAN_OUT = re.compile(r"Timed out waiting \d+ ?ms for (?:recv|send) operation")
_CLOSED = re.compile(r"Connection (?:closed|reset) by (?:remote )?peer")
_BACKWARD = frozenset({"backward", "run_backward", "_engine_run_backward"})
# Nobody leaves these before all have come: two of them cannot be under way in one group. The rest has a root that goes ahead.
_TOGETHER = re.compile(r"all_reduce\w*|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier|backward")
_MOST = 6
_TRACE = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/app/train.py", line {1}, in {2}
[rank{0}]:     work()
[rank{0}]:   File "/opt/torch/distributed/distributed_c10d.py", line 3252, in {3}
[rank{0}]:     work.wait()
[rank{0}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete
"""
_SAVE, _STEP = (_TRACE.format(r, n, f, c) for r, n, f, c in ((0, 9, "save", "barrier"), (1, 30, "step", "all_reduce")))
_LOOSE = re.compile(r"^\[rank\d\]: ", re.MULTILINE)


class WaitsEndedApart(Rule):
    """The ranks' waits ran out in different collectives, as their tracebacks tell.

    What it detects:
        "Timed out waiting" of gloo with tracebacks that end in different functions of torch.distributed.

    Why it hangs:
        Each call waits for all ranks of its group; the ranks took different branches and wait in calls that never meet.

    How to confirm:
        The lines of the program in the tracebacks: the last decision before them differs between the ranks.

    How to fix:
        Take the decision once for all ranks, or make the call on every rank.

    Sources:
        torch/distributed/distributed_c10d.py; gloo names neither the call nor the peer.
    """

    id = "waits-ended-apart"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(log_case(_SAVE + _STEP + _STEP.replace("[rank1]", "[rank2]")), (0,)),
        Fires(log_case(_LOOSE.sub("", _SAVE + _STEP)), ()),
        Quiet(log_case(_STEP + _STEP.replace("[rank1]", "[rank2]")), "they wait in the same call: somebody is missing"),
        Quiet(log_case(_LOOSE.sub("", _SAVE.replace("barrier", "broadcast") + _STEP)), "a root may go ahead"),
        Quiet(log_case(_SAVE), "one rank alone"),
        Quiet(log_case("[rank2]: ValueError: bad sample\n" + _SAVE + _STEP), "a rank failed before"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if waits ran out in different calls."""
        waits = _waits(s)
        calls = {call_of(e.frames) for e in waits}
        if len(calls) < 2 or not any(_RAN_OUT.search(e.error.message) for e in waits):
            return
        failed = failed_by_itself(s.failures)
        if (failed is not None and failed.error is None) or any(e.kind == "primary" for e in errors_of(s)):
            return
        named = {e.rank: e for e in reversed(waits) if e.rank is not None}
        is_everybody = len(named) > 1 and set(named) >= _everybody(s)
        if not is_everybody and not all(_TOGETHER.fullmatch(call) for call in calls):
            return
        odd = minority({rank: call_of(e.frames) for rank, e in named.items()})
        shown = {call_of(e.frames): e for e in reversed(waits)}
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title="the waits ran out in different calls: "
            + ", ".join(_side(call, e, named) for call, e in shown.items()),
            confidence=0.85 if is_everybody else 0.65,
            culprit_ranks=odd,
            victim_ranks=s.others(odd) if odd else (),
            because="The calls cannot meet. "
            + ("Every rank waited, so nobody is missing: their programs had parted." if is_everybody else _NOT_ALL),
            location=w.location_of(next(iter(user_frames(named[odd[0]].frames)), None)) if odd else None,
            evidence=tuple(_quote(e) for e in (waits if len(waits) <= _MOST else tuple(shown.values()))),
            fixes=(EVERY_RANK_CALLS, SEE_IT, NO_LONGER_TIMEOUT),
        )


_NOT_ALL = "The program had parted before, unless the calls belong to groups of other ranks: not every rank told where it waited."


def _everybody(s: Situation) -> set[int]:
    """All ranks of the job; rank -1, which nobody is, where neither the program nor a launcher tells how many there are."""
    told = s.case.job.world_size is not None or any(e.exit for e in s.case.ranks.values())
    return set(s.case.world) if told else {-1}


def call_of(frames: Sequence[Frame]) -> str:
    """The collective in which a traceback ends, as the program called it; empty where it ends elsewhere."""
    names = [f.function for f in frames if PurePath(f.file).name == "distributed_c10d.py"]
    if names:
        return names[-1]
    return "backward" if any(f.function in _BACKWARD and "torch" in f.file for f in frames) else ""


def _waits(s: Situation) -> tuple[SeenError, ...]:
    """The exceptions of ranks whose wait ended, and in which call; not of the start, where the store is waited for."""
    return tuple(
        e
        for e in errors_of(s)
        if (_RAN_OUT.search(e.error.message) or _CLOSED.search(e.error.message))
        and call_of(e.frames) not in ("", "init_process_group", "new_group", "split_group", "monitored_barrier")
    )


def _side(call: str, error: SeenError, named: Mapping[int, SeenError]) -> str:
    ranks = tuple(sorted(r for r, e in named.items() if call_of(e.frames) == call))
    frame = next(iter(user_frames(error.frames)), None)
    place = f" ({PurePath(frame.file).name}:{frame.line})" if frame else ""
    return f"{w.name_ranks(ranks) if ranks else 'a rank'} in {call}{place}"


def _quote(error: SeenError) -> EvidenceLine:
    who = f"rank {error.rank}" if error.rank is not None else "a rank"
    name = PurePath(error.source.path).name or "log"
    return EvidenceLine(
        f"{name}:{error.source.line}, {who}", f"in {call_of(error.frames)}: {error.text[:160]}", error.source.line
    )
