"""The area `collectives`: every collective with verified results, its speed, and the speed of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from unhang.check.areas import Context
from unhang.check.collectives.merge import (
    CaseTable,
    Reference,
    against,
    blame,
    load_reference,
    merge,
    reference_of,
    save_reference,
    slow_ranks,
)
from unhang.check.collectives.runner import Progress, Rendezvous, run_collectives
from unhang.check.collectives.suite import CaseResult, Limits, State, as_fields
from unhang.check.devices import backend_and_device
from unhang.errors import UnhangError
from unhang.model import Reading, Unavailable
from unhang.model.evidence import Value

SCOPE = "rank"
LIMIT_S = 1.0
_GATHER_LIMIT_S = 60.0
_MOST_REASONS = 4
_ALONE = "one process; --ranks starts some on this machine, torchrun or srun on all nodes"


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """One process has nobody to call with."""
    if context.participants.is_alone:
        yield Unavailable("collectives", _ALONE)


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """Runs them on the ranks that came; rank 0 tells what all ranks saw."""
    participants, options = context.participants, context.options
    if participants.is_alone:
        return
    names = options.collectives or ("all",)
    ranks = participants.present
    backend, _ = backend_and_device(context, "collectives")
    own = _run(context, names, ranks, backend)
    results = participants.collect("collectives/results", as_fields(own), 2 * options.case_limit_s + _GATHER_LIMIT_S)
    if participants.member.rank == 0:
        by_place = {
            place: msgspec.convert(results[rank], tuple[CaseResult, ...])
            for place, rank in enumerate(ranks)
            if rank in results
        }
        yield from _readings(by_place, ranks, backend)
        yield from _compared(reference_of(by_place, len(ranks)), context)


def _run(context: Context, names: Sequence[str], ranks: Sequence[int], backend: str) -> tuple[CaseResult, ...]:
    """This rank's part. The ranks that came are numbered anew, so that one that is missing does not keep the others."""
    me = context.member
    place = Rendezvous(
        ranks.index(me.rank), len(ranks), f"{me.address}:{me.port}", f"unhang-check/{me.run_id}/collectives", backend, me.local_rank
    )  # fmt: skip

    def show(progress: Progress) -> None:
        if progress.state is None:
            context.on_progress(f"collectives {progress.done + 1}/{progress.total}: {progress.name}")

    limits = Limits(case_s=context.options.case_limit_s)
    return run_collectives(place, names, context.options.largest_bytes, limits, show)


def _readings(
    by_place: Mapping[int, Sequence[CaseResult]], ranks: Sequence[int], backend: str
) -> Iterator[Reading | Unavailable]:
    tables = merge(by_place, len(ranks))
    counts = {state: sum(t.verdict is state for t in tables) for state in State}
    fields: dict[str, Any] = {f"cases_{state.value}": n for state, n in counts.items() if n}
    yield Reading("collectives.suite", backend, {"ranks": len(ranks), "cases": len(tables), **fields})
    yield from (_failure(table, ranks) for table in tables if table.is_failure)
    for table in tables:
        if table.verdict is State.SKIPPED:
            yield Unavailable(f"collectives.{table.name}", next(iter(table.reasons.values()), "refused"))
    for one in blame(tables):
        who = [ranks[place] for place in one.ranks]
        shown: dict[str, Value] = {"ranks": " ".join(map(str, who)), "because": one.because, "cases": len(one.cases)}
        yield from (Reading("collectives.blame", tables[one.cases[0]].name, shown, rank) for rank in who)
    for slow in slow_ranks(by_place):
        figures: dict[str, Value] = {
            "median_s": slow.median_s,
            "others_s": slow.others_s,
            "ratio": round(slow.ratio, 2),
        }
        yield Reading("collectives.slow_rank", "compute_speed", figures, ranks[slow.rank])


def _failure(table: CaseTable, ranks: Sequence[int]) -> Reading:
    """A case that failed, with what some of the ranks said."""
    said = [f"rank {ranks[place]}: {reason}" for place, reason in list(table.reasons.items())[:_MOST_REASONS]]
    return Reading(
        "collectives.failure",
        table.name,
        {"verdict": table.verdict.value, "group": table.group, "because": table.because, "said": "; ".join(said)},
    )


def _compared(now: Reference, context: Context) -> Iterator[Reading | Unavailable]:
    """The figures, and how they stand against those of an earlier run."""
    options = context.options
    for name, figures in now.figures.items():
        shown = {"median_s": figures.median_s, "mad_s": figures.mad_s, "busbw_gbps": figures.busbw_gbps}
        yield Reading("collectives.figure", name, shown)
    try:
        if options.save_reference:
            save_reference(options.save_reference, now)
        for ratio in against(now, load_reference(options.reference)) if options.reference else ():
            shown = {"now_s": ratio.now_s, "before_s": ratio.before_s, "ratio": round(ratio.ratio, 2)}
            yield Reading("collectives.ratio", ratio.name, {**shown, "is_slower": ratio.is_slower})
    except (UnhangError, OSError) as error:
        yield Unavailable("collectives.ratio", str(error))
    else:
        if not options.reference:
            yield Unavailable("collectives.ratio", "no --reference was given")
