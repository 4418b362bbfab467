"""Everything that is computed once per case and that all rules share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from unhang.analyze.activity import Activity
from unhang.analyze.by_kind import Events, Readings, is_of_training
from unhang.analyze.calls.align import StuckCollective, Unlike, is_nameless, stuck_collectives, unlike_values
from unhang.analyze.calls.divergence import Divergence, divergence_at, silent_divergence_at
from unhang.analyze.calls.habits import Habits
from unhang.analyze.calls.positions import CallIndex, ranks_with_dump
from unhang.analyze.failures import Failure, asked_to_end, ended_from_outside, failures_of, had_come, is_timeout
from unhang.analyze.hosts import ON_DEVICE, Doer, activity_in, doer
from unhang.analyze.lines.logged_calls import Watchdogs
from unhang.analyze.stragglers import Straggler, own_work, stragglers
from unhang.analyze.waits.recorded_waits import RecordedWaits
from unhang.analyze.waits.standing import Standing, Word, parted, standing
from unhang.analyze.waits.waits_for import (
    blocked_by,
    edges_on,
    main_waits_in_store,
    never_ending,
    owed_by_waiting,
    runs_ahead,
    waits_for,
)
from unhang.model import Case, Frame, LogEvent, Outcome, RankEvidence, WaitEdge, WaitsFor
from unhang.read.logs import events_of_errors
from unhang.read.rank_evidence import ANOTHER_WITH_ITS_RANK
from unhang.read.ras import Crossing, crossing_in, reports_in

MOST_DIVERGENCES, _MOST_SILENT = 32, 8
_LEAST_QUIET_S, _MOST_USUAL = 5.0, 3.0
# Ranks whose dumps are read whole: at most so many, of each kind of suspect, and peers of each.
_MOST_TO_READ, _OF_EACH, _PEERS = 96, 8, 3
# A wait that has lasted long, of which the line does not say that it is given up.
_WARNS_OF_A_WAIT = frozenset({"horovod.stalled", "horovod.missing", "horovod.missing_for", "horovod.ready"})
# What a watchdog writes whether a call timed out or failed.
_ON_ANY_ERROR = frozenset({"watchdog.counters", "watchdog.dump_signal"})
# Of a job that a signal has ended: from here on its log tells of nothing else.
_SAYS_THAT_IT_ENDS = ("ending.told_to_end", "ending.death_signal", "ending.got_signal", "elastic.death_signal")


@dataclass(frozen=True)
class LateRank:
    """A rank that others wait for and that waits for nobody: it has not issued the call. `doer`: its thread that would make it."""

    rank: int
    victims: tuple[int, ...]
    edge: WaitEdge
    activity: Activity
    doer: Doer | None = None


class Situation:
    """A case and its analysis, each part computed when first asked for."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def events(self) -> Events:
        """What the logs say, and then what the exceptions say that ranks reported themselves.

        Of a job that ended well the logs say only how it trained, of one that was ended nothing that it printed on that.
        """
        lines = tuple(self._events_of_logs())
        raised = ((failure.rank, failure.error) for failure in self.failures if failure.error is not None)
        return Events((*lines, *events_of_errors(raised, lines)))

    def _events_of_logs(self) -> Iterator[LogEvent]:
        events: Sequence[LogEvent] = self.case.events
        if self.case.job.exit_code == 0:
            return (e for e in events if is_of_training(e))
        events = _without_passing(events)
        ends = _SAYS_THAT_IT_ENDS if self.case.job.interrupted_by else ()
        end = next((e.order for e in events if e.kind in ends), None)
        return (e for e in events if end is None or e.order < end)

    @cached_property
    def readings(self) -> Readings:
        """What was read on the machines."""
        return Readings(self.case.readings)

    @cached_property
    def watchdogs(self) -> Watchdogs:
        """What the watchdogs of the ranks said."""
        return Watchdogs(self.events)

    @cached_property
    def index(self) -> CallIndex:
        """The collectives by group and position."""
        everybody = ranks_with_dump(self.case)
        return CallIndex(self.case.calls, everybody if everybody >= set(self.case.world) else ())

    @cached_property
    def stuck(self) -> tuple[StuckCollective, ...]:
        """The position of each group that has not completed, oldest wait first."""
        return stuck_collectives(self.case, self.index)

    @cached_property
    def activities(self) -> Mapping[int, Activity]:
        """What each rank does."""
        return {rank: activity_in(self.case, rank) for rank in self.case.ranks}

    @cached_property
    def waits(self) -> WaitsFor:
        """The waits-for graph."""
        return waits_for(self.case, self.stuck, self.recorded, self.index)

    @cached_property
    def recorded(self) -> RecordedWaits:
        """The waits that the recorded calls show."""
        return RecordedWaits(self.case, self.index)

    @cached_property
    def habits(self) -> Habits:
        """What each rank always does."""
        return Habits(self.case.calls)

    def departures(self, ranks: Iterable[int]) -> dict[int, int]:
        """Those of the ranks that left their habit before the call in which they wait, with the row where they did."""
        rows = {r: self.case.calls.rank_rows(r) for r in ranks}
        fronts = self.recorded.fronts
        return self.habits.departures(
            {r: max(fronts.get(r) or (s.stop - 1,)) for r, s in rows.items() if s.stop > s.start}
        )

    @cached_property
    def idle_roots(self) -> tuple[LateRank, ...]:
        """Ranks without a stack that others wait for, and whose dumps hold no call that keeps them."""
        return tuple(r for r in self.late if self.is_unexplained(r.rank) and self.recorded.is_idle(r.rank))

    @cached_property
    def unseen_roots(self) -> tuple[LateRank, ...]:
        """Ranks that others wait for and of which nothing tells what they do."""
        return tuple(r for r in self.late if self.recorded.is_unseen(r.rank))

    def is_unexplained(self, rank: int) -> bool:
        """Whether nothing but its recorded calls is known of a rank."""
        evidence = self.case.ranks.get(rank)
        return evidence is None or not (evidence.stacks or evidence.exit or evidence.error or evidence.pending)

    @cached_property
    def proven(self) -> tuple[int, ...]:
        """Ranks that provably wait for ever."""
        gone = [r for r, a in self.activities.items() if a.kind == "dead"]
        may_end = [r for r in self.case.ranks if main_waits_in_store(self.case, r)]
        # Of groups that a program makes by hand nothing tells who is in them.
        may_end += [r for stuck in self.stuck if is_nameless(stuck.group) for r in stuck.waiting]
        waits, answered = owed_by_waiting(self.case, self.waits)
        return never_ending(waits, gone, [*may_end, *answered, *runs_ahead(self.case, self.waits)])

    @cached_property
    def on_device(self) -> tuple[StuckCollective, ...]:
        """Calls of NCCL that all members have issued alike, and that not all have done: a device or the network keeps them."""
        return tuple(s for s in self.stuck if not s.missing and not s.is_mismatch and s.group.backend == ON_DEVICE)

    @cached_property
    def divergences(self) -> tuple[Divergence, ...]:
        """Where the programs part, oldest first. In a job that ended well, not where processes handed ranks on to each other: their calls are mixed."""
        if self.has_ended_well and any(a.reason == ANOTHER_WITH_ITS_RANK for a in self.case.absent):
            return ()
        differing = [s for s in self.stuck if s.is_mismatch][:MOST_DIVERGENCES]
        fronts = self.recorded.fronts
        # Many waits share one tuple of targets.
        waits = {(e.group, id(e.targets)): e.targets for e in self.waits.edges} if differing else {}
        found = []
        for s in differing:
            awaited = {rank for (group, _), targets in waits.items() if group != s.group.name for rank in targets}
            if (d := divergence_at(self.case, self.index, self.habits, s, fronts, awaited)) is not None:
                found.append(d)
        if not found:
            behind = [s for s in self.stuck if s.missing][:_MOST_SILENT]
            found = [d for s in behind if (d := silent_divergence_at(self.case, self.index, s)) is not None]
        return tuple(sorted(found, key=lambda d: d.odd_call.created_ns))

    @cached_property
    def divergence(self) -> Divergence | None:
        """The first divergence."""
        return self.divergences[0] if self.divergences else None

    @cached_property
    def failures(self) -> tuple[Failure, ...]:
        """Ends of ranks in the order of time; none of a job that ended well: it took them for handled."""
        return () if self.has_ended_well else failures_of(self.case)

    @property
    def has_ended_well(self) -> bool:
        """Whether the job ended by itself, with exit code 0."""
        return self.case.job.exit_code == 0 and not self.case.job.ended_by_us

    @cached_property
    def primary_failure(self) -> Failure | None:
        """The first failure that is not merely the echo of another."""
        return next((f for f in self.failures if not f.secondary), self.asked_to_end)

    @cached_property
    def asked_to_end(self) -> Failure | None:
        """The rank that somebody outside the job asked to end."""
        return None if self.is_hang else asked_to_end(self.case, self.failures)

    @cached_property
    def unlike(self) -> tuple[Unlike, ...]:
        """Completed collectives in which the ranks meant different things, the first of each kind."""
        return tuple(unlike_values(self.index))

    @cached_property
    def late(self) -> tuple[LateRank, ...]:
        """Roots of the waits-for graph, the one with the most victims first; nobody of whom this evidence could not tell."""
        came = {r for r, e in self.case.ranks.items() if had_come(e)} if self.is_crash else set()
        return tuple(r for r in self._roots if r.rank not in self.case.out_of_sight and r.rank not in came)

    @cached_property
    def out_of_sight(self) -> tuple[LateRank, ...]:
        """Ranks that others wait for and that run where nothing of this evidence comes from."""
        return tuple(r for r in self._roots if r.rank in self.case.out_of_sight)

    @cached_property
    def _roots(self) -> tuple[LateRank, ...]:
        found = []
        waits_on, victims = edges_on(self.waits, self.waits.roots), blocked_by(self.waits, self.waits.roots)
        for root in self.waits.roots:
            edge = min(waits_on[root], key=lambda e: e.since_ns or 0)
            evidence = self.case.ranks.get(root)
            who = doer(self.case, evidence, edge) if evidence is not None else None
            found.append(LateRank(root, victims[root], edge, activity_in(self.case, root, who), who))
        return tuple(sorted(found, key=lambda r: (-len(r.victims), r.rank)))

    @cached_property
    def stragglers(self) -> tuple[Straggler, ...]:
        """Ranks that are habitually late, and not because the program gives them work of their own."""
        return tuple(late for late in self._late_ones if own_work(self.case, late) is None)

    @cached_property
    def busy_by_design(self) -> tuple[tuple[Straggler, Frame], ...]:
        """Ranks that are habitually late since the program gives them work of their own, and the line of that work."""
        return tuple((late, line) for late in self._late_ones if (line := own_work(self.case, late)) is not None)

    @cached_property
    def _late_ones(self) -> tuple[Straggler, ...]:
        return stragglers(self.case, self.index) if len(self.case.calls) else ()

    @cached_property
    def standing(self) -> Standing | None:
        """Of a job that was looked at from outside: whether it moves."""
        return parted(standing(self.case, self.waits), self.crossing is not None)

    @cached_property
    def crossing(self) -> Crossing | None:
        """What NCCL's RAS counted that no ranks with the same calls can have launched."""
        return crossing_in(reports_in(self.events, self.case.log))

    @property
    def is_hang(self) -> bool:
        """Whether the job hung: the watcher said so and was right, or its own timeout ended it; or nothing moved in several looks."""
        hang = self.case.hang
        if self.standing is not None and hang is None:
            return self.standing.word is Word.STALLED
        if self.has_ended_well:
            return False
        if hang is not None and not hang.withdrawn:
            return True
        if self._ended_in_a_wait:
            return True
        first = self.failures[0] if self.failures else None
        if self._logs_say_hang:
            return True
        return first is not None and first.error is not None and is_timeout(first.error)

    @cached_property
    def _logs_say_hang(self) -> bool:
        """Whether a line tells of a hang. After an error of NCCL, which a lost peer causes, a watchdog speaks of a timeout, too."""
        error = self.events.first("nccl.error")
        said = (e for e in self.events if e.says == "hang")
        return any(error is None or e.kind not in _ON_ANY_ERROR or e.order <= error.order for e in said)

    @cached_property
    def is_over(self) -> bool:
        """Whether the job has ended, as far as is known. One that was looked at from outside, or left nothing but dumps, may still run."""
        job = self.case.job
        if self.standing is not None:
            return False
        ended = job.exit_code is not None or job.ended_by_us or job.interrupted_by or job.end_line
        return bool(ended or self.failures or any(e.says for e in self.events))

    @property
    def judges_waits(self) -> bool:
        """Whether waits are evidence: in a job that runs and is not suspected, somebody always waits for somebody."""
        return self.is_hang or (self.is_crash and not ended_from_outside(self.case, self.failures))

    @cached_property
    def _ended_in_a_wait(self) -> bool:
        """Whether somebody outside ended a job that had stood still for much longer than it ever did: a limit of its own, `timeout 20`.

        What is known of the waits comes from a look at the job, which may have moved after it.
        """
        if not ended_from_outside(self.case, self.failures):
            return False
        ranks = [self.case.ranks[r] for e in self.waits.edges for r in (e.waiter, *e.targets) if r in self.case.ranks]
        return bool(ranks) and all(
            e.quiet_s is not None and e.quiet_s >= max(_LEAST_QUIET_S, _MOST_USUAL * e.usual_quiet_s) for e in ranks
        )

    @property
    def is_crash(self) -> bool:
        """Whether a rank failed or the job ended with an error of its own."""
        failed = [f for f in self.failures if not self._is_of_ctrl_c(f)]
        if failed or self.case.loose_errors or any(e.says == "crash" for e in self.events):
            return not self.has_ended_well
        return self.case.job.exit_code not in (0, None) and not (
            self.case.job.ended_by_us or self.case.job.interrupted_by
        )

    def _is_of_ctrl_c(self, failure: Failure) -> bool:
        raised = failure.error.type if failure.error else ""
        return self.case.job.interrupted_by == "SIGINT" and raised == "KeyboardInterrupt"

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal ended a job that had neither failed nor provably hung."""
        hang = self.case.hang
        is_proven = hang is not None and not hang.withdrawn and hang.kind == "proven"
        has_timed_out = any(e.says == "hang" for e in self.events)
        return bool(self.case.job.interrupted_by) and not (is_proven or has_timed_out or self.is_crash)

    def outcome(self, straggling: bool, is_explained: bool) -> Outcome:
        """What became of the job. `is_explained`: a rule has found something, so that a log's last lines prove nothing."""
        if self.standing is not None and self.case.hang is None:
            return Outcome(self.standing.word.value)
        if self.is_interrupted:
            return Outcome.INTERRUPTED
        if self.is_hang:
            return Outcome.HANG
        if self.is_crash:
            return self._by_the_log(is_explained, handled=True)
        if straggling:
            return Outcome.STRAGGLER
        known = (
            self.case.job.exit_code is not None or len(self.case.calls) or any(map(_is_seen, self.case.ranks.values()))
        )
        if known:
            return Outcome.CLEAN
        return self._by_the_log(is_explained)

    def _by_the_log(self, is_explained: bool, handled: bool = False) -> Outcome:
        from unhang.analyze.lines.first_errors import by_the_log  # a job that was watched to its end never needs it

        return by_the_log(self, is_explained, handled)

    def others(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Every rank but these."""
        return tuple(r for r in self.case.world if r not in ranks)


def _without_passing(events: Sequence[LogEvent]) -> Sequence[LogEvent]:
    """The events without warnings of a wait after which the training went on: what they warned of has come to an end."""
    from unhang.read.logs.attempts import STILL_PRINTED, moved_after

    warned = [e for e in events if e.kind in _WARNS_OF_A_WAIT]
    if not warned or moved_after(events, warned[-1].order) <= STILL_PRINTED:
        return events
    return tuple(e for e in events if e.kind not in _WARNS_OF_A_WAIT)


def _is_seen(evidence: RankEvidence) -> bool:
    """Whether there is more of a rank than its stacks, which are those of a moment."""
    return not evidence.stacks or replace(evidence, stacks=(), unavailable=()) != RankEvidence(evidence.identity)


def ranks_that_matter(s: Situation) -> tuple[int, ...]:
    """Culprits in question and some of their peers, whose earlier calls and stacks decide what is said; at most 96."""
    found: dict[int, None] = {}
    for rank in _in_order_of_weight(s):
        if len(found) >= _MOST_TO_READ:
            break
        found.setdefault(rank)
    return tuple(sorted(found))


def _in_order_of_weight(s: Situation) -> Iterable[int]:
    for stuck in [x for x in s.stuck if x.is_mismatch][:_OF_EACH]:
        for members in stuck.classes[::-1]:
            yield from members[:_OF_EACH]
    waits = edges_on(s.waits, [late.rank for late in s.late[:_OF_EACH]])
    for late in s.late[:_OF_EACH]:
        yield late.rank
        edges = sorted(waits[late.rank], key=lambda e: (e.kind != "collective", e.since_ns or 0))
        yield from (e.waiter for e in edges[:_PEERS])
    for cycle in sorted(s.waits.cycles, key=len)[:_OF_EACH]:
        yield from cycle[: 2 * _OF_EACH]
    if not s.late:
        yield from (rank for rank, _ in zip(s.recorded.fronts, range(_OF_EACH), strict=False))
