"""Rule: a rank waits for its data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.pasted import Doing, doings_of
from unhang.analyze.situation import LateRank, Situation
from unhang.model import EvidenceLine, Finding, Fix, Frame, ThreadStack, user_frames
from unhang.model.example import Fires, Quiet, path
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import LOADER_TIMED_OUT, describe_first, first_exception
from unhang.rules.late import describe

_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 2, 3)}
_PASTED = """\
rank 0:
Thread 0x7FA6E7C01740 (idle): "MainThread"
    wait (threading.py:302)
    get (queue.py:170)
    _try_get_data (torch/utils/data/dataloader.py:1310)
    _next_data (torch/utils/data/dataloader.py:1524)
    __next__ (torch/utils/data/dataloader.py:741)
    train (app/train.py:274)
rank 1:
Thread 0x7FA6E7C01740 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    train (app/train.py:280)
"""
_STARTS = (
    "multiprocessing/popen_spawn_posix.py",
    "multiprocessing/popen_forkserver.py",
    "multiprocessing/popen_spawn_win32.py",
)
_PICKLES = ThreadStack(
    "MainThread",
    (
        Frame("/usr/lib/python3.11/multiprocessing/reduction.py", 60, "dump"),
        Frame("/usr/lib/python3.11/multiprocessing/popen_spawn_posix.py", 47, "_launch"),
        *path("main:8>~loader"),
    ),
    is_main=True,
)
_COMM = dict.fromkeys((0, 2, 3), "main:10>~backward")


class DataloaderHang(Rule):
    """A rank waits for its data loader while the others wait for the rank.

    What it detects:
        The rank that its peers wait for is in a DataLoader, or in the iterator of a loop that fetches the next batch. In a log: a
        pasted stack that ends there, or the loader's own timeout.

    Why it hangs:
        A worker is stuck (a lock inherited by fork, slow or dead storage, an endless generator), or the start of the workers
        takes longer than anybody expected (spawn pickles the data set into each worker). `DataLoader(timeout=...)` bounds the
        wait for a batch, not the start of the workers.

    How to confirm:
        The stack of the worker process, which is in the evidence where it could be taken.

    How to fix:
        `multiprocessing_context="spawn"` or "forkserver" where a library holds locks or threads, `persistent_workers=True`, a
        `timeout` on the loader that is shorter than the collective's, data that is memory-mapped instead of pickled.

    Sources:
        torch/utils/data/dataloader.py; Python documentation on fork and threads.
    """

    id = "dataloader-hang"
    cause = "dataloader-hang"
    EXAMPLES: ClassVar = (
        Fires(log_case(_PASTED), (0,)),
        Fires(log_case("[rank2]: RuntimeError: DataLoader timed out after 120 seconds"), (2,)),
        Quiet(
            log_case(_PASTED.replace("torch/utils/data/dataloader.py", "app/tokens.py")),
            "a wait of another kind",
        ),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>~loader"}), (1,), 8),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: _PICKLES}), (1,), 8),
        Quiet(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>save:40"}), "the rank is in other code"),
        Quiet(
            make_case(
                {r: ["all_reduce[8]@main:10"] for r in range(4)},
                hang=None,
                stacks=dict.fromkeys(range(4), "main:8>~loader"),
            ),
            "nobody waits for the rank",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per late rank that fetches data."""
        first = first_exception(s)
        if first is not None and LOADER_TIMED_OUT.search(first.text):
            what = "waited for its data loader until the loader's own timeout"
            yield describe_first(s, self, first, 0.93, what, _fixes())
        elif first is None:
            yield from self._from_stacks(s)
        for late in s.late if s.judges_waits else ():
            if late.activity.kind == "data" and s.divergence is None:
                if _starts_workers(s, late):
                    what = "still starts the workers of its data loader, each with a copy of the data set,"
                    yield describe(s, self, late, 0.93, what, _START_FIXES, _workers(s, late))
                else:
                    yield describe(s, self, late, 0.93, "waits for its data loader", _fixes(), _workers(s, late))

    def _from_stacks(self, s: Situation) -> Iterable[Finding]:
        """One finding where the stacks in a log show some ranks in their loader, and no named rank elsewhere but in a collective."""
        doings = doings_of(s)
        fetching = [d for d in doings if d.kind == "loader"]
        others = [d for d in doings if d.kind != "loader" and d.ranks]
        if (
            not fetching
            or any(d.kind != "collective" for d in others)
            or len({d.ranks for d in fetching}) > max(1, len(others))
        ):
            return
        ranks = tuple(sorted({r for d in fetching for r in d.ranks}))
        first: Doing = fetching[0]
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{w.name_ranks(ranks) if ranks else 'a rank'} waits for its data loader"
            + (f" at {w.place(first.caller)}" if first.caller else ""),
            confidence=0.88 if ranks and others else 0.75,
            culprit_ranks=ranks,
            victim_ranks=tuple(sorted({r for d in others for r in d.ranks})),
            because="Its stack ends in the wait for the next batch"
            + (", while the others wait for it in a collective." if others else "; a worker does not deliver it."),
            location=w.location_of(first.caller),
            evidence=tuple(
                EvidenceLine(f"{d.who} stack", " < ".join(str(f) for f in d.frames[:4]), d.line.source.line)
                for d in (*fetching[:3], *others[:3])
            ),
            fixes=_fixes(),
        )


def _starts_workers(s: Situation, late: LateRank) -> bool:
    """Whether the rank pickles what its workers get: they are started by spawn or forkserver, not by fork."""
    evidence = s.case.ranks.get(late.rank)
    stack = evidence.main_stack if evidence else None
    return stack is not None and any(f.file.endswith(_STARTS) for f in stack.frames)


def _workers(s: Situation, late: LateRank) -> list[EvidenceLine]:
    """The stacks of the rank's worker processes."""
    evidence = s.case.ranks.get(late.rank)
    own = evidence.identity.pid if evidence else None
    others = [t for t in (evidence.stacks if evidence else ()) if t.process_id not in (None, own)]
    return [_worker_line(late.rank, t) for t in others[:4]]


def _worker_line(rank: int, stack: ThreadStack) -> EvidenceLine:
    mine = user_frames(stack.frames)
    frames = mine or stack.frames
    where = " < ".join(str(f) for f in frames[:3]) or "no Python frame"
    return EvidenceLine(f"rank {rank} loader worker {stack.process_id}", where, frames[0].line if frames else None)


def _fixes() -> tuple[Fix, ...]:
    return (
        Fix(
            "Start the workers without fork",
            patch='DataLoader(..., multiprocessing_context="spawn", persistent_workers=True)   # locks and threads are not inherited',
            verify="unhang run -- <the same command>: the first batch arrives",
            undo="remove the arguments",
        ),
        Fix(
            "Let the loader fail before the collective does",
            patch="DataLoader(..., timeout=60)   # seconds per batch; shorter than the process group's timeout",
            verify="the loader raises and names the worker",
            undo="timeout=0",
        ),
    )


_START_FIXES = (
    Fix(
        "Do not send the data set to each worker: open it there",
        patch="class Data: keep the path in __init__, and np.load(path, mmap_mode='r') or open the file at the first __getitem__   # then little is pickled",
        verify="unhang run -- <the same command>: the first batch arrives",
        undo="revert the edit",
    ),
    Fix(
        "Start the workers once, and before the first collective",
        patch="DataLoader(..., persistent_workers=True); iterator = iter(loader) before init_process_group; or num_workers=0 for data that is in memory",
        verify="later epochs begin at once",
        undo="remove the arguments",
    ),
    Fix(
        "Does not help: timeout= of the DataLoader",
        setting="leave it: it bounds the wait for a batch, not the start of the workers",
        verify="the rank is in the start of its workers all the same",
    ),
)
