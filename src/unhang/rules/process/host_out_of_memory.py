"""Rule: the host ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet, ended
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import GPU_OOM, HOST_OOM, describe_failure, describe_first, first_exception, is_read_from_log
from unhang.rules.line_rule import quote
from unhang.rules.process.rank_crashed import first_crash, killed_for_memory

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"
_SURE = ("oom.kernel", "oom.slurm", "oom.pod", "oom.ray")
_KILLED = (-9, 137)
_WORK_IN_MEMORY = ("work.preparing", "oom.loading")
_SLURM = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed.
srun: error: node-a: task 3: Out Of Memory
slurmstepd: error: *** STEP 440575.0 ON node-a CANCELLED AT 2023-12-05T07:16:01 ***
"""
_WORKER = "RuntimeError: DataLoader worker (pid 71810) is killed by signal: Killed. "
_LOADING = """\
Loading checkpoint shards:  50%|#####     | 2/4 [00:27<00:27, 13.69s/it]
[2023-04-14 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266
[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['python', '-u', 'main.py', '--local_rank=0'] exits with return code = -9
"""


class HostOutOfMemory(Rule):
    """The host ran out of memory, and the kernel or a scheduler killed a process for it.

    What it detects:
        A rank ended by SIGKILL, and the kernel's counters or log name the OOM killer; the same from Slurm, Kubernetes or Ray; a
        loader's worker that was killed; an allocation of host memory that failed. A SIGKILL alone counts only where the last
        thing that the log shows is the loading of weights or data.

    Why it hangs:
        The rank is gone without a word; its peers wait or report a lost connection.

    How to confirm:
        `dmesg -T | grep -i oom`, `cat /sys/fs/cgroup/memory.events`.

    How to fix:
        Fewer loader workers, smaller prefetch, memory-mapped data, a larger memory limit of the job.

    Sources:
        Linux documentation, cgroup v2: memory.events.
    """

    id = "host-out-of-memory"
    cause = "host-oom"
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={2: ended("signal", -9, at_s=5)},
                hang=None,
                exit_code=1,
                log=["Out of memory: Killed process 4242 (python)"],
            ),
            (2,),
        ),
        Fires(log_case(_SLURM), (3,)),
        Fires(log_case(_WORKER), ()),
        Fires(log_case(_LOADING), ()),
        Quiet(
            make_case({}, exits={2: ended("signal", -9, at_s=5)}, hang=None, exit_code=1),
            "a SIGKILL alone proves nothing",
        ),
        Quiet(
            log_case(_LOADING.replace("Loading checkpoint shards", "Epoch 3")), "a SIGKILL in the middle of training"
        ),
        Quiet(log_case("torch.OutOfMemoryError: CUDA out of memory."), "the memory of the device"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the first crash was for want of host memory."""
        failure = first_crash(s)
        if failure is not None and not is_read_from_log(failure):
            if killed_for_memory(s, failure):
                yield describe_failure(s, self, (failure,), 0.93, "was killed by the kernel for want of memory", _FIXES)
            return
        first = first_exception(s)
        if first is not None and GPU_OOM.search(first.text):
            return
        sure = s.events.of(*_SURE)
        if sure:
            yield self._finding(s, sure, 0.95, "was killed for want of host memory")
        elif first is not None and HOST_OOM.search(first.text):
            killed = "killed by signal" in first.text
            what = "lost a loader worker to SIGKILL: the host ran out of memory" if killed else "ran out of host memory"
            yield describe_first(s, self, first, 0.8 if killed else 0.9, what, _FIXES)
        elif first is None and (guess := _killed_while_loading(s)):
            yield self._finding(s, guess, 0.62, "was killed (SIGKILL) while it loaded weights or data into memory")

    def _finding(self, s: Situation, events: Sequence[LogEvent], sure: float, what: str) -> Finding:
        told = {rank for rank, e in s.case.ranks.items() if e.exit is not None and e.exit.code in _KILLED}
        ranks = tuple(sorted({e.rank for e in events if e.rank is not None} or told))
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{w.name_ranks(ranks) if ranks else 'a process'} {what}",
            confidence=sure,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because="The process could not say a word: peers see a lost connection or wait, the launcher sees signal 9."
            + ("" if sure > 0.9 else " Nothing else in the log tells who sent the signal; the kernel's log does."),
            evidence=quote(events),
            fixes=_FIXES,
        )


def _killed_while_loading(s: Situation) -> tuple[LogEvent, ...]:
    """A death by SIGKILL whose last line before is about loading or preparing data, with no word of another reason."""
    deaths = [
        e
        for e in s.events.of("ending.", "elastic.worker_failed")
        if e["code"] in ("-9", "137")
        or e["signal"] in ("SIGKILL", "9")
        or e.kind == "ending.killed"
        or e["what"] == "Killed"
    ]
    others = [e for e in s.events.of("ending.lightning_child") if e["code"] not in ("-9", "137")]
    if not deaths or others or s.events.has("watchdog.", "shm.", "cuda."):
        return ()
    before = [
        e for e in s.events.of("work.", "progress.", "oom.loading", "learn.loss_finite") if e.order < deaths[0].order
    ]
    if not before:
        return ()
    last = [e for e in before if e.order == before[-1].order]
    return (last[0], *deaths) if any(e.kind in _WORK_IN_MEMORY for e in last) else ()


_FIXES = (
    Fix(
        "Use less host memory",
        patch="fewer workers (num_workers), smaller prefetch_factor, memory-mapped data; low_cpu_mem_usage=True when each rank loads "
        "the weights",
        verify="RSS of ranks and workers over time",
        undo="revert the edit",
    ),
    Fix(
        "Give the job more",
        setting="the scheduler's memory limit (Slurm --mem, Kubernetes resources.limits.memory)",
        verify="memory.events: oom_kill stays 0",
        undo="restore the limit",
    ),
    Fix(
        "Does not help: a longer timeout, or another NCCL setting",
        setting="leave both: the process is gone before any collective could go on",
        verify="dmesg names the process again",
        undo="nothing is changed",
    ),
)
