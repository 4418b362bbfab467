"""Rules on calls that do not match: what the ranks, NCCL, torch or Horovod printed of both sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import PurePath

from unhang.analyze.lines import logged_calls
from unhang.analyze.lines.first_errors import SeenError, errors_of
from unhang.analyze.lines.log_progress import failed_by_itself
from unhang.analyze.lines.pasted import threads_apart
from unhang.analyze.lines.phases import leaves_the_pass
from unhang.analyze.lines.stalled_tensors import missed_by, reports
from unhang.analyze.lines.told_apart import rounds_apart
from unhang.analyze.situation import Situation
from unhang.analyze.waits.open_calls import CPU_GENERATOR
from unhang.model import EvidenceLine, Fix, Frame
from unhang.rules import wording as w
from unhang.rules.advice import EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, OF_THE_DATA, OF_THE_PROGRAM, PAD, SEE_IT
from unhang.rules.base import Found, Names, rule
from unhang.rules.failure import first_exception, found_at_first, is_of_objects
from unhang.rules.job.stacks import stacks_disagree
from unhang.rules.log_lines import MOST_WORDS, found_in, quote, quote_own
from unhang.rules.remedies import make_for_all
from unhang.rules.start_repairs import of_files_of_others

# Of these the sizes are the program's own choice; of the others (buckets, shards) they follow from which tensor it is.
_SIZED_BY_USER = frozenset({"ALLGATHER", "BROADCAST", "REDUCE"})
_TRACED_SIZED_BY_USER = frozenset({"AllGather", "Broadcast", "Reduce"})
# Nobody completes these before every member has brought its part.
_TOGETHER = frozenset(
    {"ALLREDUCE", "ALLREDUCE_COALESCED", "ALLGATHER", "_ALLGATHER_BASE", "BARRIER", "_REDUCE_SCATTER_BASE"}
)
# The state of torch's generator, in bytes: Accelerate sends it from rank 0 where a loader begins.
_GENERATOR = ("BROADCAST", CPU_GENERATOR)
_SAYS = ("threads", "rounds", "epoch", "beside", "odd", "nobody")
# Files of FSDP and ZeRO that gather parameters and scatter gradients: what they gather is a module, not the program's data.
_OF_SHARDS = re.compile(r"/distributed/fsdp/|/fairscale/nn/data_parallel/|/deepspeed/runtime/zero/")
_LEAST_DONE = 2
_MOST_TENSORS, _TWO = 200, 2
_EARLIER, _SAME_CHARACTERS = 0.6, 40
_OF_TWO_LINES = 0.65  # tensors of calls in different lines are not one call's


@rule("amounts-disagree")
def amounts_disagree(s: Situation) -> Iterator[Found]:
    """The first position with different amounts."""
    for waits in s.watchdogs.positions:
        known = [x for x in waits if x.rank is not None and x.numel_in is not None and x.op in _SIZED_BY_USER]
        amounts = {x.rank: x.numel_in for x in known if x.rank is not None and x.numel_in is not None}
        op = known[0].op if known else ""
        if len({x.op for x in known}) != 1 or len({*amounts.values()}) < 2:
            continue
        if op != "ALLGATHER" and logged_calls.are_far_apart(amounts.values()):
            continue
        odd = logged_calls.minority(amounts)
        sizes = ", ".join(f"rank {rank} {n}" for rank, n in sorted(amounts.items())[:6])
        yield Found(
            0.85 if stacks_disagree(s) is None else _OF_TWO_LINES,
            odd,
            quote(logged_calls.lines_of(known)),
            {"op": op, "sizes": sizes, "ranks": w.name_ranks(sorted(amounts))},
            "odd" if odd else "nobody",
            (PAD, NO_LONGER_TIMEOUT),
            tuple(r for r in amounts if r not in odd) if odd else (),
            collective={"op": op, "seq": waits[0].seq},
        )
        return


@rule("calls-disagree")
def calls_disagree(s: Situation) -> Iterator[Found]:
    """The first position at which ranks were in different calls."""
    for waits in s.watchdogs.positions:
        known = [x for x in waits if x.op and x.op != "UNKNOWN"]
        if len({x.op for x in known}) > 1:
            yield _apart(s, known, {x.rank: x.op for x in known if x.rank is not None}, "operations")
            return
        if _amounts_differ(known):
            yield _apart(s, known, {x.rank: x.numel_in for x in known if x.rank is not None}, "amounts")
            return


def _amounts_differ(waits: Sequence[logged_calls.TimedOut]) -> bool:
    sizes = [(x.op, x.numel_in) for x in waits if x.numel_in is not None and x.op not in logged_calls.UNEVEN_OPS]
    by_program = {n for op, n in sizes if op not in _SIZED_BY_USER}
    return len(by_program) > 1 or logged_calls.are_far_apart(n for op, n in sizes if op != "ALLGATHER")


def _apart(s: Situation, waits: Sequence[logged_calls.TimedOut], values: dict[int, object], what: str) -> Found:
    call = {x.rank: x for x in waits}
    odd = logged_calls.minority(values)
    beside = () if odd else logged_calls.beside_the_step({r: (call[r].op, call[r].numel_in) for r in values})
    odd = odd or beside
    others = tuple(sorted(r for r in values if r not in odd))
    sides = ", ".join(f"rank {r} in {call[r]}" for r in sorted(values)[:4])
    if odd:
        was = w.verb(odd, "was", "were")
        sides = f"{w.name_ranks(odd)} {was} in {call[odd[0]]}, {w.name_ranks(others)} in {call[others[0]]}"
    is_generator = any((call[r].op, call[r].numel_in) == _GENERATOR for r in beside)
    begins_epoch = is_generator or (bool(odd) and leaves_the_pass(s, [call[r] for r in odd], [call[r] for r in others]))
    threads, rounds = (threads_apart(s, odd, others), rounds_apart(s, odd, others)) if odd else ({}, ())
    is_uneven = begins_epoch or bool(rounds)
    return Found(
        0.85 if odd and waits[0].seq is not None else 0.75,
        odd,
        (*quote(logged_calls.lines_of(waits)), *quote_own(rounds)),
        {"sides": sides, "what": what, "told": rounds[0].said[:MOST_WORDS] if rounds else "", **threads},
        next(x for x, is_so in zip(_SAYS, (threads, rounds, begins_epoch, beside, odd, True), strict=True) if is_so),
        ("one thread", SEE_IT) if threads else OF_THE_DATA if is_uneven else OF_THE_PROGRAM,
        others if odd else (),
        cause="collective-order-race" if threads else "uneven-inputs" if is_uneven else "",
        collective={"op": call[others[0] if odd else min(values)].op, "seq": waits[0].seq},
    )


@rule("fingerprint-mismatch")
def fingerprint_mismatch(s: Situation) -> Iterator[Found]:
    """Other operations, or the same on other tensors; one side alone where the other is not in the log."""
    found = logged_calls.fingerprints(s.events)
    say = logged_calls.what_differs(found)
    if found and (say != "tensors" or (_sizes_differ(found) and _is_other_tensor(s, found.values()))):
        sized = {r: (f.op, f.shape[0] if len(f.shape) == 1 else None) for r, f in found.items()}
        odd = logged_calls.minority({r: f.seq if say == "counts" else (f.op, f.shape) for r, f in found.items()})
        odd = odd or logged_calls.beside_the_step(sized)
        yield _of_prints(found, odd, 0.65 if say == "alone" else 0.9, say, (EVERY_RANK_CALLS, SEE_IT))


@rule("fingerprint-shapes")
def fingerprint_shapes(s: Situation) -> Iterator[Found]:
    """Other sizes of what is meant to be the same tensor."""
    found = logged_calls.fingerprints(s.events)
    if (
        logged_calls.what_differs(found) == "tensors"
        and _sizes_differ(found)
        and not _is_other_tensor(s, found.values())
    ):
        odd = logged_calls.minority({rank: (f.shape, f.dtype) for rank, f in found.items()})
        yield _of_prints(found, odd, 0.92, "odd" if odd else "nobody", (PAD,))


def _of_prints(
    found: Mapping[int, logged_calls.Fingerprint],
    odd: tuple[int, ...],
    confidence: float,
    say: str,
    fixes: tuple[Fix, ...],
) -> Found:
    first = next(iter(found.values()))
    sides = ", ".join(
        f"rank {r} {f}{f' as call {f.seq}' if say == 'counts' else ''}" for r, f in sorted(found.items())[:4]
    )
    words, call = {"sides": sides, "ranks": w.name_ranks(sorted(found))}, {"op": first.op, "seq": first.seq}
    victims = tuple(r for r in found if r not in odd) if odd else ()
    return Found(confidence, odd, quote(f.event for f in found.values()), words, say, fixes, victims, collective=call)


def _sizes_differ(found: Mapping[int, logged_calls.Fingerprint]) -> bool:
    return len({(f.shape, f.dtype) for f in found.values()}) > 1


def _is_other_tensor(s: Situation, found: Iterable[logged_calls.Fingerprint]) -> bool:
    """Whether sizes differ because another bucket or shard is meant: flat and large, as only DDP and FSDP make them, or asked for by them."""
    prints = tuple(found)
    if not all(len(f.shape) == 1 for f in prints):
        return False
    if any(_OF_SHARDS.search(frame.file) for error in errors_of(s) for frame in error.frames):
        return True
    sizes = [f.shape[0] for f in prints]
    is_gathered = any(f.op == "ALLGATHER" for f in prints)  # a program's own results may differ as much
    return min(sizes) >= logged_calls.BUCKET_ELEMENTS or (logged_calls.are_far_apart(sizes) and not is_gathered)


@rule("traced-calls-disagree")
def traced_calls_disagree(s: Situation) -> Iterator[Found]:
    """The first position at which NCCL's traces differ in more than the amount."""
    calls = logged_calls.first_disagreement(s.events)
    if calls and not _is_one_tensor(calls):
        yield _of_traces(s, calls, ", ".join(f"{c.name} {c}" for c in calls[:4]), OF_THE_PROGRAM)


@rule("traced-amounts-disagree")
def traced_amounts_disagree(s: Situation) -> Iterator[Found]:
    """The first position at which NCCL's traces differ in the amount alone."""
    calls = logged_calls.first_disagreement(s.events)
    if calls and _is_one_tensor(calls):
        yield _of_traces(s, calls, ", ".join(f"{c.name} {c.numel}" for c in calls[:6]), (PAD, NO_LONGER_TIMEOUT))


def _of_traces(s: Situation, calls: tuple[logged_calls.TracedCall, ...], sides: str, fixes: tuple[Fix, ...]) -> Found:
    odd, first = logged_calls.minority(logged_calls.values_of(calls)), calls[0]
    return Found(
        0.85,
        odd,
        quote(c.event for c in calls),
        {"op": first.op, "position": f"{first.position:x}", "sides": sides},
        fixes=fixes,
        collective={"op": first.op, "seq": first.position},
    )


def _is_one_tensor(calls: Sequence[logged_calls.TracedCall]) -> bool:
    """Whether it is the same call with other amounts: of one type, of an operation whose sizes are the program's own choice."""
    kinds = {(c.op, c.dtype) for c in calls}
    return (
        len(kinds) == 1
        and calls[0].op in _TRACED_SIZED_BY_USER
        and not logged_calls.are_far_apart(c.numel for c in calls)
    )


@rule("nccl-mismatch")
def nccl_mismatch(s: Situation) -> Iterator[Found]:
    """Unless the transport failed: then the ranks stand where it left them."""
    if (events := s.events.of("fingerprint.nccl")) and not s.events.has("rdma.completion_error"):
        yield found_in(s, events, 0.85, fixes=(PAD, SEE_IT))


@rule("objects-disagree", names=Names.FAILURE)
def objects_disagree(s: Situation) -> Found | None:
    """The first exception, unless memory or a device failed before. The rank that read the object need not be the one that erred."""
    first = first_exception(s)
    if first is None or not is_of_objects(first) or s.events.has("cuda."):
        return None
    if any(e.kind != "oom.loading" and first.head not in e.text for e in s.events.of("oom.")):
        return None
    found = found_at_first(s, first, 0.7, {"head": first.head}, fixes=(EVERY_RANK_CALLS, SEE_IT))
    return replace(found, culprits=())


@rule("ranks-compared")
def ranks_compared(s: Situation) -> Iterator[Found]:
    """Without the lines of DDP that compare with nothing; little where another exception came first."""
    events = s.events.of("compared.forward_order", "compared.fetch_order", "ddp.inconsistent_params")
    events = tuple(e for e in events if e.kind != "ddp.inconsistent_params" or e["other"] not in ("", "0"))
    if events:
        before = [e for e in errors_of(s) if e.kind == "primary" and e.order < events[0].order]
        is_later = any(e.error.message[:_SAME_CHARACTERS] not in events[0].text for e in before)
        first = first_exception(s)
        frame = first.frame if first is not None and first.error.message[:_SAME_CHARACTERS] in events[0].text else None
        made = make_for_all(s.case, first.error, first.ranks) if first is not None and frame is not None else None
        made = made or of_files_of_others(first.error.frames if first is not None else ())
        more = {"words": {"at": f" at {w.place(frame)}" if frame else ""}, "fixes": (made or "same-modules", SEE_IT)}
        yield found_in(s, events, _EARLIER if is_later else 0.96, (), location=frame, **more)


@rule("others-completed")
def others_completed(s: Situation) -> Iterator[Found]:
    """A single rank that waits in the first call."""
    waits, alone = s.watchdogs.timed_out, s.watchdogs.ranks
    if len(alone) != 1 or not waits or waits[0].seq not in (0, 1):
        return
    start = waits[0].events[0].order
    done = [e for e in s.events.of("progress.rank_done") if e.rank not in (None, *alone) and e.order < start]
    others = len({e.rank for e in done})
    if others >= _LEAST_DONE:
        yield Found(
            0.7,
            alone,
            (*quote(logged_calls.lines_of(waits), 2), *quote(done, 3)),
            {"rank": alone[0], "call": waits[0], "others": others},
            fixes=(PAD, SEE_IT),
            collective={"op": waits[0].op, "seq": waits[0].seq},
            victims=(),
        )


@rule("ran-ahead")
def ran_ahead(s: Situation) -> Iterator[Found]:
    """The first pair of ranks."""
    firsts = tuple({x.rank: x for x in reversed(s.watchdogs.timed_out) if x.rank is not None}.values())[::-1]
    if len({x.group for x in firsts if x.group}) > 1 or s.watchdogs.has_subgroups or s.watchdogs.lagging[0]:
        return
    for behind, ahead in ((b, a) for b in firsts for a in firsts if _has_left(a, b)):
        odd = logged_calls.minority({x.rank: (x.seq, x.op, x.numel_in) for x in firsts if x.rank is not None})
        yield Found(
            0.65,
            odd,
            quote(logged_calls.lines_of(firsts)),
            {"rank": behind.rank, "call": behind, "ahead_rank": ahead.rank, "ahead_call": ahead},
            fixes=OF_THE_PROGRAM,
            collective={"op": behind.op, "seq": behind.seq},
        )
        return


def _has_left(ahead: logged_calls.TimedOut, behind: logged_calls.TimedOut) -> bool:
    if behind.seq is None or ahead.seq is None or not behind.keeps_cpu or {ahead.op, behind.op} - _TOGETHER:
        return False
    return ahead.seq > behind.seq and (ahead.op, ahead.numel_in) != (behind.op, behind.numel_in)


@rule("submitted-apart")
def submitted_apart(s: Situation) -> Iterator[Found]:
    """The first report of Horovod in which each side misses something."""
    for lines in reports(s.events):
        missing = missed_by(lines, s.case.job.world_size == _TWO)
        if any(a - b and b - a for a, b in combinations(list(missing.values())[:_MOST_TENSORS], 2)):
            ranks = sorted(set().union(*missing.values()))
            odd = logged_calls.minority(
                {r: frozenset(tensor for tensor, who in missing.items() if r in who) for r in ranks}
            )
            some = list(missing.items())[:3]
            sides = "; ".join(f"{w.name_ranks(sorted(who))} did not submit {tensor}" for tensor, who in some)
            yield Found(0.85, odd, quote(lines), {"sides": sides}, fixes=OF_THE_PROGRAM)
            return


_RAN_OUT = re.compile(r"Timed out waiting \d+ ?ms for (?:recv|send) operation")
_CLOSED = re.compile(r"Connection (?:closed|reset) by (?:remote )?peer")
_BACKWARD = frozenset({"backward", "run_backward", "_engine_run_backward"})
# Nobody leaves these before all have come: two of them cannot be under way in one group. The rest has a root that goes ahead.
_TOGETHER_IN_CODE = re.compile(r"all_reduce\w*|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier|backward")
# In the start the store is waited for, and no call.
_NO_CALL = ("", "init_process_group", "new_group", "split_group", "monitored_barrier")
_MOST_WAITS = 6


@rule("waits-ended-apart")
def waits_ended_apart(s: Situation) -> Iterator[Found]:
    """Waits that ran out in different calls; of some ranks alone only calls that cannot be under way at once."""
    late = [e for e in errors_of(s) if any(p.search(e.error.message) for p in (_RAN_OUT, _CLOSED))]
    waits = [(e, call) for e in late if (call := _call_of(e.frames)) not in _NO_CALL]
    calls = {call for _, call in waits}
    if len(calls) < 2 or not any(_RAN_OUT.search(e.error.message) for e, _ in waits):
        return
    failed = failed_by_itself(s.failures)
    if (failed is not None and failed.error is None) or any(e.kind == "primary" for e in errors_of(s)):
        return
    named = {e.rank: (e, call) for e, call in reversed(waits) if e.rank is not None}
    is_everybody = len(named) > 1 and set(named) >= _everybody(s)
    if not is_everybody and not all(_TOGETHER_IN_CODE.fullmatch(call) for call in calls):
        return
    odd = logged_calls.minority({rank: call for rank, (_, call) in named.items()})
    shown = {call: e for e, call in reversed(waits)}
    ranks_in = {call: sorted(r for r, (_, c) in named.items() if c == call) for call in shown}
    quoted = waits if len(waits) <= _MOST_WAITS else [(e, call) for call, e in shown.items()]
    yield Found(
        0.85 if is_everybody else 0.65,
        odd,
        tuple(_in_call(e, call) for e, call in quoted),
        {"sides": ", ".join(_side(ranks_in[call], call, e) for call, e in shown.items())},
        "all" if is_everybody else "some",
        OF_THE_PROGRAM,
        location=w.own_line(named[odd[0]][0].frames) if odd else None,
    )


def _everybody(s: Situation) -> set[int]:
    """All ranks of the job; rank -1, which nobody is, where neither the program nor a launcher tells how many there are."""
    is_known = s.case.job.world_size is not None or any(e.exit for e in s.case.ranks.values())
    return set(s.case.world) if is_known else {-1}


def _call_of(frames: Sequence[Frame]) -> str:
    """The collective in which a traceback ends, as the program called it; empty where it ends elsewhere."""
    names = [f.function for f in frames if PurePath(f.file).name == "distributed_c10d.py"]
    if names:
        return names[-1]
    return "backward" if any(f.function in _BACKWARD and "torch" in f.file for f in frames) else ""


def _side(ranks: Sequence[int], call: str, error: SeenError) -> str:
    frame = w.own_line(error.frames)
    place = f" ({PurePath(frame.file).name}:{frame.line})" if frame else ""
    return f"{w.name_ranks(ranks) if ranks else 'a rank'} in {call}{place}"


def _in_call(error: SeenError, call: str) -> EvidenceLine:
    who = f"rank {error.rank}" if error.rank is not None else "a rank"
    place = f"{PurePath(error.source.path).name or 'log'}:{error.source.line}"
    return EvidenceLine(f"{place}, {who}", f"in {call}: {error.text[:160]}", error.source.line)
