"""Who is accused by what the ranks said, and who is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unhang.check.collectives.merge import (
    SCHEMA,
    Blame,
    Reference,
    against,
    blame,
    load_reference,
    merge,
    reference_of,
    save_reference,
    slow_ranks,
)
from unhang.check.collectives.suite import CaseResult, Figures, State, Stuck, Wrong
from unhang.errors import UnreadableInput

WORLD = 4
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:23776"


def _one(rank: int, state: State = State.OK, op: str = "all_reduce", group: str = "all", **more: object) -> CaseResult:
    result = CaseResult(0, op, op, group, state)
    return replace(result, **more)


def _tables(*cases: dict[int, CaseResult]) -> dict[int, list[CaseResult]]:
    return {
        rank: [replace(case[rank], case=i) for i, case in enumerate(cases) if rank in case] for rank in range(WORLD)
    }


def _case(
    others: State = State.OK, op: str = "all_reduce", group: str = "all", **ranks: CaseResult
) -> dict[int, CaseResult]:
    return {rank: ranks.get(f"r{rank}", _one(rank, others, op, group)) for rank in range(WORLD)}


def _wrong(rank: int, op: str = "all_reduce", group: str = "all", **more: object) -> CaseResult:
    detail = Wrong(3, "1", "2", 1, 8)
    return _one(rank, State.WRONG, op, group, wrong=replace(detail, **more))


def _opinion(*cases: dict[int, CaseResult]) -> Blame:
    (opinion,) = blame(merge(_tables(*cases), WORLD))
    return opinion


def _hung(rank: int, issued: int | None = 1, entered: bool = True, **more: object) -> CaseResult:
    return _one(rank, State.HUNG, **{"stuck": Stuck((), issued), "entered": entered, **more})


def test_nothing_is_wrong_with_a_healthy_job() -> None:
    assert blame(merge(_tables(_case(), _case(State.SKIPPED)), WORLD)) == ()


@pytest.mark.parametrize(("culprit", "others", "what"), [
    (_hung(2, None, False), State.HUNG, "rank 2 never entered it"),
    (_one(2, State.DIED, reason="the worker was ended by SIGKILL"), State.HUNG, "rank 2 died in it"),
    (_one(2, State.ERROR, reason="ValueError: mine"), State.HUNG, "rank 2 raised an error of its own"),
])  # fmt: skip
def test_the_rank_that_keeps_the_others_waiting(culprit: CaseResult, others: State, what: str) -> None:
    opinion = _opinion(_case(), _case(others, r2=culprit))
    assert opinion == Blame((2,), f"all_reduce: {what}", (1,))


def test_the_rank_that_has_issued_less_is_behind() -> None:
    opinion = _opinion({rank: _hung(rank, 0 if rank == 1 else 1) for rank in range(WORLD)})
    assert opinion.ranks == (1,)
    assert "fewer collectives" in opinion.because


def test_a_rank_whose_process_stands_still_does_not_answer() -> None:
    opinion = _opinion({rank: _hung(rank, None, stuck=None) if rank == 3 else _hung(rank) for rank in range(WORLD)})
    assert opinion.ranks == (3,)
    assert "does not answer" in opinion.because


def test_the_store_knows_who_did_not_come() -> None:
    waiting = {rank: _hung(rank, None, False, waiting_for=(3,)) for rank in range(3)}
    assert _opinion({**waiting, 3: _hung(3, None, False)}).ranks == (3,)


@pytest.mark.parametrize("case", [
    {rank: _hung(rank) for rank in range(WORLD)},
    {rank: _hung(rank, None) for rank in range(WORLD)},
    {rank: _one(rank, State.ERROR, reason="RuntimeError: no route") for rank in range(WORLD)},
    _case(State.HUNG, r1=_one(1, State.ERROR, reason=CLOSED)),
    _case(State.ERROR, r1=_one(1, State.DIED, reason="SIGABRT, last said: size doesn't match expected size")),
    {rank: _one(rank, State.ERROR, reason="RuntimeError: odd") if rank != 1 else _hung(1) for rank in range(WORLD)},
    {rank: _hung(rank, None, stuck=None) if rank else _hung(0) for rank in range(WORLD)},
], ids=["all alike", "no record", "same error", "peer gone", "received too much", "error of most", "most are mute"])  # fmt: skip
def test_nobody_is_accused_where_the_evidence_does_not_tell(case: dict[int, CaseResult]) -> None:
    case = {r: replace(c, reason=CLOSED) if c.state is State.ERROR and not c.reason else c for r, c in case.items()}
    assert _opinion(case).ranks == ()


def test_what_follows_a_failure_is_its_consequence() -> None:
    first = _case(r1=_hung(1, 1), r2=_hung(2, None, False), r3=_hung(3, 1))
    then = {0: _one(0, State.ERROR, reason=CLOSED), **{rank: _one(rank, State.NOT_RUN) for rank in (1, 2, 3)}}
    tables = merge(_tables(first, then), WORLD)
    assert tables[1].consequence_of == 0
    assert [opinion.ranks for opinion in blame(tables)] == [(2,)]


def test_a_rank_without_a_report_is_told_and_accused_only_of_what_hung() -> None:
    by_rank = {rank: [_hung(rank, None)] for rank in range(3)}
    (table,) = merge(by_rank, WORLD)
    assert (table.suspects, table.reasons[3]) == ((3,), "this rank has reported nothing")
    healthy = merge({rank: [_one(rank)] for rank in range(3)}, WORLD)
    assert (healthy[0].verdict, blame(healthy)) == (State.NOT_RUN, ())


def test_a_case_that_only_some_ranks_refuse_is_an_error() -> None:
    (table,) = merge(_tables(_case(r2=_one(2, State.SKIPPED, reason="not supported"))), WORLD)
    assert (table.verdict, table.suspects, table.because) == (State.ERROR, (2,), "torch refuses it on rank 2 only")


def test_a_contribution_that_is_missing_names_its_rank() -> None:
    assert _opinion({rank: _wrong(rank, missing_rank=1) for rank in range(WORLD)}).ranks == (1,)
    divided = {rank: _wrong(rank, missing_rank=rank % 2) for rank in range(WORLD)}
    assert _opinion(divided).ranks == ()


def test_wrong_on_one_rank_only() -> None:
    assert _opinion(_case(r3=_wrong(3))).ranks == (3,)
    assert _opinion(_case(op="reduce", r0=_wrong(0, "reduce"))).ranks == (), "nobody but the root looks at a reduce"


def test_data_that_is_wrong_on_all_others_names_its_source() -> None:
    moved = {rank: _wrong(rank, "all_gather", sources=(1,)) for rank in (0, 2, 3)}
    assert _opinion(_case(op="all_gather", **{f"r{rank}": one for rank, one in moved.items()})).ranks == (1,)
    only_two = {f"r{rank}": moved[rank] for rank in (2, 3)}
    assert _opinion(_case(op="all_gather", **only_two)).ranks == (), "it may have been spoilt on the way"


def test_a_link_is_told_from_a_rank_by_other_cases() -> None:
    ring = _case(op="send_recv", r3=_wrong(3, "send_recv", sources=(2,)))
    assert merge(_tables(ring), WORLD)[0].suspects == (2, 3)
    assert _opinion(ring).ranks == ()
    pairs = _case(op="send_recv", group="other pairs", **{
        f"r{rank}": _wrong(rank, "send_recv", "other pairs", sources=(3 - rank,)) for rank in (1, 2)
    })  # fmt: skip
    assert _opinion(ring, pairs).ranks == (2,)


def test_groups_that_have_one_rank_in_common_name_it() -> None:
    everyone = {rank: _wrong(rank) for rank in range(WORLD)}
    halves = _case(group="halves", r2=_wrong(2, group="halves"), r3=_wrong(3, group="halves"))
    pairs = _case(group="other pairs", r1=_wrong(1, group="other pairs"), r2=_wrong(2, group="other pairs"))
    assert _opinion(everyone).ranks == ()
    assert _opinion(everyone, halves).ranks == ()
    assert "suspects: ranks 2, 3" in _opinion(everyone, halves).because
    assert _opinion(everyone, halves, pairs).ranks == (2,)


def test_two_faults_at_once_name_nobody() -> None:
    assert _opinion(_case(r0=_wrong(0)), _case(r3=_wrong(3))).ranks == ()
    pairs = {rank: _wrong(rank, group="pairs") for rank in range(WORLD)}
    assert _opinion(pairs).ranks == ()


def _speed(median_s: float, mad_s: float = 0.001, low_s: float | None = None) -> Figures:
    return Figures(median_s, low_s or median_s - mad_s, mad_s, 10, None)


def _ranks(*figures: Figures) -> dict[int, list[CaseResult]]:
    return {rank: [_one(rank, op="compute_speed", figures=one)] for rank, one in enumerate(figures)}


def test_a_rank_that_had_to_share_its_processor_is_not_slow() -> None:
    """Nine blocks of ten were interrupted by others, one was not."""
    usual = [_speed(0.010)] * 3
    from unhang.check.collectives.operations import figures_of  # imports torch

    assert slow_ranks(_ranks(*usual, figures_of([0.030] * 9 + [0.011]))) == ()
    assert [s.rank for s in slow_ranks(_ranks(*usual, figures_of([0.030] * 10)))] == [3]


def test_a_slow_rank_is_slow_in_its_good_runs_too() -> None:
    usual = [_speed(0.010)] * 3
    (slow,) = slow_ranks(_ranks(*usual, _speed(0.030)))
    assert (slow.rank, slow.others_s, round(slow.ratio, 6)) == (3, 0.010, 3.0)
    assert slow_ranks(_ranks(*usual, _speed(0.030, low_s=0.011))) == ()
    assert slow_ranks(_ranks(*usual, _speed(0.014))) == ()
    assert slow_ranks(_ranks(*[_speed(0.010, 0.009)] * 3, _speed(0.030))) == ()
    assert slow_ranks(_ranks(_speed(0.010), _speed(0.030))) == ()


def test_a_figure_is_marked_when_it_is_beyond_noise(tmp_path: Path) -> None:
    names = ("same", "slower", "noisy", "a little", "faster")
    before = Reference(SCHEMA, 2, {name: _speed(0.010, 0.008 if name == "noisy" else 0.0005) for name in names})
    times = {"same": 0.010, "slower": 0.020, "noisy": 0.020, "a little": 0.0149, "faster": 0.001, "new": 1.0}
    now = Reference(SCHEMA, 2, {name: _speed(time_s, 0.0005) for name, time_s in times.items()})
    save_reference(tmp_path / "r.json", before)
    ratios = against(now, load_reference(tmp_path / "r.json"))
    assert [ratio.name for ratio in ratios] == list(names)
    assert [ratio.name for ratio in ratios if ratio.is_slower] == ["slower"]
    assert ratios[1].ratio == 2
    with pytest.raises(UnreadableInput, match="is of 2 ranks, this run of 3"):
        against(replace(now, world_size=3), before)


def test_a_reference_holds_the_median_over_the_ranks() -> None:
    by_rank = {
        rank: [_one(rank, op="benchmark", figures=_speed(time_s))] for rank, time_s in enumerate((1.0, 2.0, 9.0))
    }
    assert reference_of(by_rank, 3).figures["benchmark"].median_s == 2.0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "other", "world_size": 1, "figures": {}}', "\udcff"])
def test_another_file_is_no_reference(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UnreadableInput, match=r"r\.json"):
        load_reference(path)
    with pytest.raises(UnreadableInput, match="No such file"):
        load_reference(tmp_path / "none.json")


@pytest.mark.parametrize(("text", "is_refused"), [
    ("Cannot use ReduceOp.PREMUL_SUM with Gloo", True), ("Invalid scalar type", True),
    ("Backend gloo does not implement startCoalescing", True), ("Input tensor data type is not supported", True),
    ("monitored_barrier is only implemented for GLOO backend.", True), ("invalid tensor size at index 0", False),
    (CLOSED, False), ("Timed out waiting 10000ms for recv operation to complete", False), ("NCCL error: unhandled", False),
])  # fmt: skip
def test_what_torch_refuses_is_told_from_what_fails(text: str, is_refused: bool) -> None:
    from unhang.check.collectives.suite import Case
    from unhang.check.worker import _first_line, _is_refusal  # imports torch

    assert _is_refusal(RuntimeError(text), Case("all_reduce")) is is_refused
    assert _is_refusal(RuntimeError("invalid tensor size at index 0"), Case("all_gather_uneven"))
    assert _first_line(RuntimeError(f"{text} This is typically caused by a crash\nmore")) == f"RuntimeError: {text}"


def test_a_pair_of_three_ranks() -> None:
    row = {
        rank: [_wrong(rank, group="pairs") if rank < 2 else _one(rank, State.OUTSIDE, group="pairs")]
        for rank in range(3)
    }
    (table,) = merge(row, 3)
    assert (table.verdict, table.suspects) == (State.WRONG, (0, 1))
