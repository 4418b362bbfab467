"""Rule: a rank ended before the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.failures import Failure, early_leavers
from unhang.analyze.first_errors import SeenError, errors_of, is_log_only
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, ProcessState, RankEvidence, user_frames
from unhang.model.example import Fires, Quiet, ended
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.collective.uneven_inputs import UnevenInputs, is_outnumbered, made_as_often
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import describe_failure

_CLOSED = re.compile(r"Connection closed by peer|Connection reset by peer|Socket closed")
_TRANSFERS = ("recv", "send", "irecv", "isend", "recv_object_list", "send_object_list", "batch_isend_irecv")
_PEER = re.compile(r"\b(?:i?recv|i?send)\([^,()]+,\s*(?:(?:src|dst|source|dest)\s*=\s*)?(?P<peer>\d{1,6})\b")
# What says that a process failed, or that the job was ended: then a closed connection is its echo.
_ENDS = ("ending.", "elastic.", "oom.", "cuda.", "python.fatal", "loader.", "watchdog.")
_LOG = """\
  File "/app/test.py", line 20, in main_worker
    dist.recv(x, 0)
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 1002, in recv
    pg.recv([tensor], src, tag).wait()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.250.133.2]:30872
"""
_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 1, 3)}
_SUM = "learners/all_reduce[4]@main:9"
_LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:29345@main:9"
_MORE = ["all_reduce[4]@main:9", "barrier@main:11"]


class RankExitedEarly(Rule):
    """A rank ended of its own accord while the others still needed it.

    What it detects:
        A process called sys.exit or os._exit, or came to the end of its program, and peers wait for it or failed because it was
        gone. In a log: a receive or send that lost its peer, where nothing tells of a failure.

    Why it hangs:
        The peers' collectives need every member. With gloo they fail with "Connection closed by peer"; with NCCL they wait.
        torchrun does not end the job when a rank exits with code 0.

    How to confirm:
        The exit record: who called exit, from which line.

    How to fix:
        Let all ranks take the decision to stop together.

    Sources:
        torchrun: a worker that exits with 0 counts as success.
    """

    id = "rank-exited-early"
    cause = "rank-exited-early"
    EXAMPLES: ClassVar = (
        Fires(log_case(_LOG), (0,), 20),
        Quiet(log_case(_LOG + "process 0 terminated with signal SIGSEGV"), "the peer crashed"),
        Quiet(
            log_case(_LOG.replace("in recv", "in barrier").replace("recv(", "barrier(")),
            "in a collective anybody may be the peer",
        ),
        Fires(
            make_case(_WAIT, exits={2: ended("sys.exit", 0, where="main:7")}, states={2: ProcessState("gone")}), (2,), 7
        ),
        Fires(make_case(_WAIT, hang=None, exit_code=1, exits={2: ended("os._exit", 9, where="main:7")}), (2,), 7),
        *(
            Fires(
                make_case(
                    {0: [_SUM, f"{_SUM} !"], 1: [_SUM], 2: [_SUM, f"{_SUM} !"], 3: []},
                    groups={"learners": (0, 1, 2)},
                    hang=None,
                    exit_code=1,
                    errors=dict.fromkeys((0, 2), _LOST),
                    exits={1: ended("os._exit", 0, at_s=9.9, where="main:7"), 3: last},
                ),
                (1,),
                7,
            )
            for last in (ended("vanished", None, at_s=11.9), ended("signal", -9, at_s=11.9))
        ),
        Quiet(
            make_case(
                {0: [_SUM, f"{_SUM} !"], 1: [_SUM, _SUM], 2: [_SUM, f"{_SUM} !"], 3: []},
                groups={"learners": (0, 1, 2)},
                hang=None,
                exit_code=137,
                errors={0: _LOST},
                exits={1: ended("exit", 0, at_s=9.9), 2: ended("signal", -9, at_s=10.9)},
            ),
            "nobody waits for the rank that left",
        ),
        Quiet(
            make_case(
                {
                    0: ["all_reduce[4]@main:17", "all_reduce[4]@main:18 !"],
                    **{r: ["all_reduce[4]@main:17"] for r in (1, 2, 3)},
                },
                exits={r: ended("exit", 0) for r in (1, 2, 3)},
                states={r: ProcessState("gone") for r in (1, 2, 3)},
            ),
            "three came to the end of the program; the fourth makes a call more than they",
        ),
        Quiet(
            make_case(
                {0: ["all_reduce[4]@main:9", "barrier@main:12"], 1: [*_MORE, "barrier@main:12 !"]},
                world=2,
                exits={0: ended("exit", 0)},
                states={0: ProcessState("gone")},
            ),
            "it made that last call, too: its peer made another one more, before",
        ),
        Quiet(
            make_case(
                {r: ["barrier@main:10"] for r in range(4)},
                hang=None,
                exit_code=0,
                exits={r: ended("exit", 0, at_s=10 + r) for r in range(4)},
            ),
            "all ended, one after the other",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first rank that left, if anyone needed it."""
        if is_log_only(s):
            yield from self._from_log(s)
            return
        leaver = next((e for e in early_leavers(s.case) if _was_needed(s, e)), None)
        first = s.primary_failure
        if leaver is None or s.divergence is not None:
            return
        if first is not None and first.rank != leaver.rank and not left_before(s, first):
            return
        if list(UnevenInputs().check(s)):
            return
        end = leaver.exit
        assert end is not None
        failure = Failure(leaver.rank, end.kind, end.time_ns, None, end, secondary=False)
        code = f" with code {end.code}" if end.code is not None else ""
        how = "came to the end of its program" if end.kind == "exit" else f"called {end.kind}"
        yield describe_failure(s, self, (failure,), 0.94, f"{how}{code} while the others were still at work", _FIXES)

    def _from_log(self, s: Situation) -> Iterable[Finding]:
        """One finding where a receive lost its sender, or a send its receiver, and no process is known to have failed."""
        errors = errors_of(s)
        lost = [e for e in errors if _CLOSED.search(e.text) and any(f.function in _TRANSFERS for f in e.frames[:6])]
        others = [e for e in errors if e not in lost and e.kind != "echo"]
        if not lost or others or s.events.has(*_ENDS) or any(e.exit and e.exit.code for e in s.case.ranks.values()):
            return
        peers = tuple(sorted({p for e in lost if (p := _peer_in_source(s, e)) is not None}))
        who = w.name_ranks(peers) if peers else "a rank"
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{who} closed its connection while a peer still exchanged messages with it",
            confidence=0.65,
            culprit_ranks=peers,
            victim_ranks=tuple(sorted({e.rank for e in lost if e.rank is not None})),
            because="The peer's receive or send ended with a closed connection, and the log shows no process that failed: it "
            "came to the end of its program, most likely before its own transfers were done.",
            location=w.location_of(next(iter(user_frames(lost[0].frames)), None)),
            evidence=(EvidenceLine("log", lost[0].text[:300], lost[0].source.line),),
            fixes=_FIXES,
        )


def _peer_in_source(s: Situation, error: SeenError) -> int | None:
    """The peer that the line of source in the traceback names: `dist.recv(x, 0)`."""
    lines = [x.text for x in s.case.log[max(0, error.order - 2) : error.order + 24]]
    found = [m for text in lines if (m := _PEER.search(text))]
    return int(found[0]["peer"]) if found else None


def left_before(s: Situation, failure: Failure) -> bool:
    """Whether peers wait for a rank that had left when this process was killed, or gone unseen: what a launcher does.

    Where the kernel killed it for want of memory, no launcher did.
    """
    code, evidence = failure.exit.code if failure.exit else None, s.case.ranks[failure.rank]
    if failure.kind != "vanished" and (failure.kind != "signal" or code not in (-9, -15)):
        return False
    if evidence.state is not None and evidence.state.oom_kills:
        return False
    waited_for = {rank for edge in s.waits.edges for rank in edge.targets}
    felt_ns = min((f.time_ns for f in s.failures if f.secondary and f.error is not None), default=0)
    return any(
        0 < e.exit.time_ns <= felt_ns <= failure.time_ns
        for rank, e in s.case.ranks.items()
        if e in early_leavers(s.case) and rank in waited_for and e.exit is not None
    )


def _was_needed(s: Situation, leaver: RankEvidence) -> bool:
    """Whether a peer waits for the rank, or lost its connection after it had gone."""
    missed = [stuck for stuck in s.stuck if leaver.rank in stuck.missing]
    if missed and (not is_outnumbered(s, leaver) or any(made_as_often(s, leaver.rank, stuck) for stuck in missed)):
        return False
    if any(leaver.rank in e.targets for e in s.waits.edges):
        return True
    time_ns = leaver.exit.time_ns if leaver.exit else 0
    return any(
        f.rank != leaver.rank and f.secondary and f.error is not None and f.time_ns >= time_ns for f in s.failures
    )


_FIXES = (
    Fix(
        "Stop together",
        patch="stop = torch.tensor(float(want_to_stop)); dist.all_reduce(stop, op=dist.ReduceOp.MAX)\nif stop.item() > 0: break   # on every rank",
        verify="unhang run -- <the same command>: all ranks end at the same call",
        undo="revert the edit",
    ),
    Fix(
        "Wait for your own transfers before the end",
        patch="request = dist.isend(x, dst=1)\n...\nrequest.wait()\ndist.barrier()   # on every rank, before it returns",
        verify="unhang run -- <the same command>: no closed connection",
        undo="revert the edit",
    ),
)
