"""Rule: more threads and workers than cores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import Needs, needs_of
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_TOO_MANY, _FAR_TOO_MANY = 2, 4  # busy threads for each core: loader workers and main threads wait part of their time
_LEAST_CORES = 4


class FewCores(ReadingRule):
    """The processes of a job have far fewer cores than they need.

    What it detects:
        Ranks x (threads + loader workers) are more than twice the cores that the processes may use: their affinity and the
        quota of their container, not what is built in. Or a rank is bound to a single core.

    Why it hangs:
        It does not hang, it crawls: threads that wait for each other lose their turn, a rank that is not scheduled lets all
        others wait in the collective, and a quota stops all threads of a container together for many milliseconds.

    How to confirm:
        `nproc` in the launched process, `taskset -cp PID`, and `nr_throttled` in the control group's cpu.stat.

    How to fix:
        OMP_NUM_THREADS, fewer workers, more cores for the job (`--cpus-per-task`, the container's limit).

    Sources:
        torchrun sets OMP_NUM_THREADS=1 for this reason where several ranks share a node; sched_setaffinity(2).
    """

    id = "few-cores"
    cause = "straggler"
    reads = ("machine.cores", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.cores", cpus="0-7", count=8, online=8),
                read("setup.job plan", ranks_per_node=8, workers=6, threads=1, world_size=8),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                [read("machine.cores", rank=r, cpus="0", count=1, online=64) for r in (0, 1)],
                [read("setup.job here", rank=r, ranks_per_node=2, threads=1, world_size=4) for r in (0, 1)],
            ),
            (0, 1),
        ),
        Quiet(
            readings_case(
                read("machine.cores", cpus="0-1", count=2, online=2),
                read("setup.job here", ranks_per_node=4, threads=1, world_size=4),
            ),
            "a small machine on which four ranks are tried",
        ),
        Quiet(
            readings_case(
                read("machine.cores", cpus="0-7", count=8, online=8), read("setup.job here", ranks_per_node=1)
            ),
            "one process takes all cores",
        ),
        Quiet(
            readings_case(
                [read("machine.cores", rank=r, cpus=f"{8 * r}-{8 * r + 7}", count=8, online=16) for r in (0, 1)],
                [read("setup.job here", rank=r, ranks_per_node=2, workers=7, world_size=2) for r in (0, 1)],
            ),
            "each rank has cores of its own",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts that have too few; else one for ranks on a single core."""
        crowded = []
        for host in dict.fromkeys(r.host for r in s.readings.of("machine.cores")):
            readings = [r for r in s.readings.of("machine.cores") if r.host == host]
            needs = needs_of(s, readings[0])
            have, threads = _cores(readings, needs), _threads(readings[0], needs)
            wanted = needs.ranks * (threads + (needs.workers or 0))
            if wanted > _TOO_MANY * have:
                crowded.append((wanted / have, readings, needs, have, threads))
        if crowded:
            yield self._crowded(*max(crowded, key=lambda c: c[0]), [r for c in crowded for r in c[1]])
            return
        single = [r for r in s.readings.of("machine.cores") if _is_single(r, needs_of(s, r))]
        if single:
            yield self._finding(
                single,
                f"each rank on {hosts_of(single)} is bound to a single core",
                "Its main thread, the threads of its collectives and its loader workers take turns on this core.",
                0.72,
                _MORE_CORES,
            )

    def _crowded(
        self, ratio: float, worst: list[Reading], needs: Needs, have: float, threads: int, readings: list[Reading]
    ) -> Finding:
        is_unset = needs.threads is None and threads > 1
        wanted = f"{needs.ranks} x ({threads} thread{'s' * (threads > 1)} + {needs.workers or 0} workers)"
        title = f"{wanted} share {have:g} core{'s' * (have != 1)} {needs.place('cores', readings)}"
        because = "More than two busy threads for each core: those that wait for each other lose their turn."
        if is_unset:
            because += " OMP_NUM_THREADS is not set, so that each rank starts a thread for each core that it sees."
        quota = worst[0].number("quota")
        if quota is not None and quota <= have:
            because += " The limit is the quota of the container, which torch does not see."
        fixes = (_SET_THREADS,) if is_unset else (_FEWER_WORKERS, _MORE_CORES[0]) if needs.workers else _MORE_CORES
        return self._finding(readings, title, because, 0.8 if ratio > _FAR_TOO_MANY else 0.72, fixes)

    def _finding(
        self, readings: list[Reading], title: str, because: str, confidence: float, fixes: tuple[Fix, ...]
    ) -> Finding:
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=title,
            confidence=confidence,
            culprit_ranks=ranks_of(readings),
            because=because,
            evidence=cite(readings),
            fixes=fixes,
        )


def _cores(readings: list[Reading], needs: Needs) -> float:
    """Cores of a host for all its ranks together: what the plan says, else what any of them may use, within their quota."""
    planned = needs.planned("cores")
    if planned:
        return planned
    cpus = {number for r in readings for number in _numbers(r.text("cpus"))}
    quotas = [q for r in readings if (q := r.number("quota"))]
    return min([float(len(cpus) or 1), *([max(quotas)] if len(quotas) == len(readings) else [])])


def _numbers(text: str) -> Iterable[int]:
    """`0-3,8` as numbers."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _threads(reading: Reading, needs: Needs) -> int:
    """Threads that each rank computes with. Where nothing is set: one of torchrun's, else as many as it sees cores.

    A rank that is alone takes all cores and disturbs nobody, unless a quota gives it fewer than it sees.
    """
    if needs.threads:
        return needs.threads
    if needs.is_plan or (needs.ranks == 1 and reading.number("quota") is None):
        return 1
    return int(reading.number("count") or 1)


def _is_single(reading: Reading, needs: Needs) -> bool:
    return (
        not needs.is_plan
        and needs.world > 1
        and reading["count"] == 1
        and (reading.number("online") or 0) >= _LEAST_CORES
    )


_SET_THREADS = Fix(
    "Give each rank its share of the cores",
    command="export OMP_NUM_THREADS=1   # or: cores of the node / ranks on it",
    verify="unhang check   # with the variable set: no finding of cores",
    undo="unset OMP_NUM_THREADS",
)
_FEWER_WORKERS = Fix(
    "Fewer loader workers",
    setting="DataLoader(num_workers=...): at most cores / ranks - 1 for each rank",
    verify="unhang check --workers NUMBER: no finding of cores",
    undo="restore num_workers",
)
_MORE_CORES = (
    Fix(
        "Ask for more cores",
        setting="Slurm: --cpus-per-task; Kubernetes: resources.limits.cpu; docker run --cpus; mpirun --bind-to none",
        verify="nproc in the launched process",
        undo="restore the former request",
    ),
)
