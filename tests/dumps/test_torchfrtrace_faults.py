"""Where torchfrtrace (torch 2.13) goes wrong on small jobs whose truth is plain, and that unhang does not.

Each test looks at the other tool's own answer first: should a later torch answer better, the test says so by failing.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.dumps import frtrace
from tests.dumps.small_dumps import (
    LIVE_S,
    SCHEDULED,
    STARTED,
    WORLD,
    Call,
    Dump,
    SmallJob,
    batch,
    call,
    everybody,
    job,
)
from unhang.cli.diagnose import Judged, diagnose
from unhang.read.dumps.reader import DumpReader

UNHANG = Path(sys.executable).parent / "unhang"
CASES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {}


@dataclass(frozen=True)
class Case:
    """Dumps, and what torchfrtrace says of them."""

    folder: Path
    theirs: frtrace.Answer

    @property
    def ours(self) -> Judged:
        return diagnose([self.folder], partial(DumpReader, use_cache=False))

    @property
    def we_accuse(self) -> set[int]:
        """The ranks that any finding of ours names."""
        return {rank for f in self.ours.diagnosis.findings for rank in f.culprit_ranks}

    def we_find_nothing(self) -> bool:
        """Whether we read all calls, and none of them makes us say anything."""
        calls, diagnosis = self.ours.case.calls, self.ours.diagnosis
        dumps = [pickle.loads(path.read_bytes()) for path in self.folder.glob("nccl_trace_rank_*")]
        assert len(calls) == sum(len(dump["entries"]) for dump in dumps)
        return diagnosis.findings == () and diagnosis.inventory.absent == () and diagnosis.exit_code == 0


def case(name: str, *arguments: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    """Registers dumps under a name; `arguments`: further ones for torchfrtrace."""

    def register(write: Callable[[Path], object]) -> Callable[[Path], object]:
        CASES[name] = (write, arguments)
        return write

    return register


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
    root = tmp_path_factory.mktemp("torchfrtrace")
    questions = {}
    for name, (write, arguments) in CASES.items():
        write(root / name)
        questions[name] = (str(root / name), *arguments)
    theirs = frtrace.answers({**questions, "its help": ("--help",)})
    return {name: Case(root / name, theirs[name]) for name in theirs}


# The plain job that many cases vary: rank 2 does not come to the third call.
STEPS = [call("all_reduce", (8,), line=31), call("all_reduce", (16,), line=33)]
LAST = call("all_reduce", (8,), line=44, state=STARTED)


def late_rank_2(**more: Any) -> SmallJob:
    return job({0: [*STEPS, LAST], 1: [*STEPS, LAST], 2: STEPS, 3: [*STEPS, LAST]}, **more)


@case("plain")
def _plain(folder: Path) -> None:
    late_rank_2().write(folder)


# 1. Files from other machines run their code.


class Evil:
    """Touches a file when it is unpickled, and becomes the dump that was expected."""

    def __init__(self, marker: Path, dump: Dump) -> None:
        self.code = f"__import__('pathlib').Path({str(marker)!r}).touch() or {dump!r}"

    def __reduce__(self) -> tuple[object, ...]:
        return eval, (self.code,)


def marker_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name} was executed")


@case("code in a pickle")
def _code_in_a_pickle(folder: Path) -> None:
    def hide(dump: Dump) -> bytes:
        return pickle.dumps(Evil(marker_of(folder), dump), protocol=2)

    late_rank_2(changes={3: hide}).write(folder)


@case("code in the ranks of a group")
def _code_in_ranks(folder: Path) -> None:
    def hide(dump: Dump) -> Dump:
        code = f"__import__('pathlib').Path({str(marker_of(folder))!r}).touch() or [0, 1, 2, 3]"
        dump["pg_config"]["0"]["ranks"] = repr(code)
        return dump

    late_rank_2(changes={3: hide}).write(folder)


@pytest.mark.parametrize("name", ["code in a pickle", "code in the ranks of a group"])
def test_1_it_executes_what_a_dump_tells_it_to(cases: Mapping[str, Case], name: str) -> None:
    it = cases[name]
    marker = marker_of(it.folder)
    assert marker.exists(), "torchfrtrace ran the code"
    marker.unlink()
    assert it.we_accuse == {2}
    assert not marker.exists()


def test_1_the_file_with_code_is_named(cases: Mapping[str, Case]) -> None:
    absent = cases["code in a pickle"].ours.diagnosis.inventory.absent
    told = [f"{a.what}: {a.reason}" for a in absent if "nccl_trace_rank_3" in f"{a.what} {a.reason}"]
    assert told, absent


# 2. Calls are aligned by `record_id`, which counts the calls of one rank in all groups.


@case("different numbers of calls")
def _different_numbers(folder: Path) -> None:
    busy, calm = (
        [call("all_reduce", group=g) for _ in range(n)] + [call("all_gather", (4,), (16,))] * 2
        for g, n in (("busy", 12), ("calm", 2))
    )
    groups = {"busy": (0, 1), "calm": (2, 3)}
    job({0: busy, 1: busy, 2: calm, 3: calm}, groups, ring=8, quiet_s=LIVE_S).write(folder)


@case("only open calls")
def _only_open(folder: Path) -> None:
    more = [call("all_reduce", group="pair")] * 3
    waiting = [*STEPS, LAST]
    groups = {"pair": (1, 3)}
    calls = {0: waiting, 1: [*more, *waiting], 2: STEPS, 3: [*more, *waiting]}
    job(calls, groups, only_open=True).write(folder)


def test_2_ranks_with_fewer_calls_are_accused_of_nothing(cases: Mapping[str, Case]) -> None:
    it = cases["different numbers of calls"]
    assert it.theirs.missing == {2, 3}, "both are healthy: all calls of all ranks have completed"
    assert it.we_find_nothing()


def test_2_dumps_that_hold_only_open_calls(cases: Mapping[str, Case]) -> None:
    it = cases["only open calls"]
    assert 0 in it.theirs.missing, "rank 0 waits like its peers"
    assert it.we_accuse == {2}


# 3. The first rank is the reference.


@case("rank 0 makes another call")
def _rank_0_op(folder: Path) -> None:
    wrong = call("broadcast", (8,), line=60, state=STARTED)
    right = [*STEPS, LAST]
    job({0: [*STEPS, wrong], 1: right, 2: right, 3: right}).write(folder)


@case("rank 0 has another size")
def _rank_0_size(folder: Path) -> None:
    wrong = replace(LAST, in_sizes=[(7,)], out_sizes=[(7,)])
    right = [*STEPS, LAST]
    job({0: [*STEPS, wrong], 1: right, 2: right, 3: right}).write(folder)


@pytest.mark.parametrize(
    ("name", "cause"),
    [("rank 0 makes another call", "code-divergence"), ("rank 0 has another size", "size-mismatch")],
)
def test_3_the_majority_is_right_not_the_first_rank(cases: Mapping[str, Case], name: str, cause: str) -> None:
    it = cases[name]
    assert it.theirs.culprits == {1, 2, 3}
    first = it.ours.diagnosis.findings[0]
    assert (first.culprit_ranks, first.cause) == ((0,), cause)


# 4. Ranks of a running job are never at the same moment.


@case("a running job")
def _running(folder: Path) -> None:
    ahead, other = [*STEPS, replace(LAST, state="completed")], [*STEPS, LAST]
    job({0: ahead, 1: other, 2: other, 3: other}, quiet_s=LIVE_S).write(folder)


def test_4_a_rank_that_is_a_moment_ahead_is_no_fault(cases: Mapping[str, Case]) -> None:
    it = cases["a running job"]
    assert "COLLECTIVE_STATE_MISMATCH" in it.theirs.text
    assert it.theirs.culprits == {1, 2, 3}
    assert it.we_find_nothing()


# 5. Point-to-point calls belong to a pair, not to the group.


@case("a healthy pipeline")
def _pipeline(folder: Path) -> None:
    stages = 4
    calls = {}
    for r in range(stages):
        receive = [call(f"recv {r}<-{r - 1}", group="pp")] if r else []
        send = [call(f"send {r}->{r + 1}", group="pp")] if r + 1 < stages else []
        calls[r] = [*receive, *send] * 3 + [call("all_reduce", (1,))]
    job(calls, {"pp": range(stages)}, quiet_s=LIVE_S).write(folder)


@case("a healthy ring that receives first")
def _ring(folder: Path) -> None:
    ranks = 4
    calls = {}
    for r in range(ranks):
        receive = call(f"recv {r}<-{(r - 1) % ranks}", group="ring")
        send = call(f"send {r}->{(r + 1) % ranks}", group="ring")
        calls[r] = batch(receive, send) * 2
    job(calls, {"ring": range(ranks)}, quiet_s=LIVE_S).write(folder)


def test_5_a_healthy_pipeline(cases: Mapping[str, Case]) -> None:
    it = cases["a healthy pipeline"]
    assert it.theirs.accused, "every send has met its receive"
    assert it.we_find_nothing()


def test_5_a_healthy_ring_that_receives_first(cases: Mapping[str, Case]) -> None:
    it = cases["a healthy ring that receives first"]
    assert "MISMATCH" in it.theirs.text
    assert it.we_find_nothing()


# 6. Some collectives may be uneven.


def uneven(op: str, rank: int) -> Call:
    """A completed uneven collective of four ranks."""
    mine, total = [3, 5, 4, 4][rank], 16
    if op == "all_to_all":
        table = [[1, 2, 3, 4], [2, 2, 2, 2], [4, 3, 2, 1], [1, 1, 1, 1]]
        ins, outs = [[n] for n in table[rank]], [[row[rank]] for row in table]
        return replace(call(op), in_sizes=ins, out_sizes=outs)
    if op == "all_to_all_v_single":
        return call(op, ([12, 9, 8, 7][rank],), ([9, 9, 9, 9][rank],))
    return call(op, (mine,), (total,)) if op == "all_gather_v" else call(op, (total,), (mine,))


UNEVEN = ("all_to_all", "all_to_all_v_single", "all_gather_v", "reduce_scatter_v")
for _op in UNEVEN:

    @case(f"uneven {_op}")
    def _uneven(folder: Path, op: str = _op) -> None:
        job({r: [*STEPS, uneven(op, r)] for r in range(4)}, quiet_s=LIVE_S).write(folder)


@pytest.mark.parametrize("op", UNEVEN)
def test_6_uneven_collectives_are_no_mismatch(cases: Mapping[str, Case], op: str) -> None:
    it = cases[f"uneven {op}"]
    assert "mismatch" in it.theirs.text.lower() or it.theirs.accused, it.theirs
    assert it.we_find_nothing()


# 7. What an all_gather gives must have room for what the ranks put in; the name is misspelled in the check.


@case("all_gather without room")
def _no_room(folder: Path) -> None:
    gather = call("_all_gather_base", (4,), (12,), state=STARTED, line=44)
    everybody(4, [*STEPS, gather]).write(folder)


def test_7_an_all_gather_into_a_tensor_of_the_wrong_size(cases: Mapping[str, Case]) -> None:
    it = cases["all_gather without room"]
    assert not it.theirs.accused
    assert "mismatch" not in it.theirs.text.lower()
    first = it.ours.diagnosis.findings[0]
    assert (first.cause, first.culprit_ranks) == ("size-mismatch", (0, 1, 2, 3))


# 8. Waits go across groups.


@case("a culprit in another group")
def _across_groups(folder: Path) -> None:
    groups = {"tp0": (0, 1, 2, 3), "tp1": (4, 5, 6, 7), **{f"dp{i}": (i, i + 4) for i in range(4)}}
    calls = {}
    for r in range(8):
        tp, dp = f"tp{r // 4}", f"dp{r % 4}"
        stuck = r >= 4
        second = call("all_reduce", group=tp, line=33, state=STARTED if stuck else "completed")
        across = call("all_gather", (4,), (8,), group=dp, line=44, state=SCHEDULED if stuck else STARTED)
        norm = call("all_reduce", (1,), line=50, state=SCHEDULED)
        calls[r] = [call("all_reduce", group=tp, line=31), second, across, norm]
    calls[6] = calls[6][:1]
    job(calls, groups).write(folder)


@case("false mismatches before the true one")
def _limit(folder: Path) -> None:
    groups = {"pp": (0, 1, 2, 3), "tp": (4, 5, 6, 7)}
    calls: dict[int, list[Call]] = {}
    for r in range(4):
        receive = [call(f"recv {r}<-{r - 1}", group="pp")] if r else []
        send = [call(f"send {r}->{r + 1}", group="pp")] if r < 3 else []
        calls[r] = [*receive, *send] * 12
    step = call("all_reduce", group="tp", line=31)
    waits = call("all_reduce", group="tp", line=44, state=STARTED)
    calls |= {r: [step, waits] for r in (4, 5, 7)} | {6: [step]}
    job(calls, groups).write(folder)


def test_8_the_root_of_the_waits_is_in_another_group(cases: Mapping[str, Case]) -> None:
    it = cases["a culprit in another group"]
    assert it.theirs.accused - {6}, "ranks that wait for rank 6 are accused"
    assert 6 not in it.theirs.culprits
    first = it.ours.diagnosis.findings[0]
    assert first.culprit_ranks == (6,)
    assert set(first.victim_ranks) == {0, 1, 2, 3, 4, 5, 7}
    assert it.we_accuse == {6}


def test_8_the_limit_of_one_group_ends_the_analysis_of_all(cases: Mapping[str, Case]) -> None:
    it = cases["false mismatches before the true one"]
    assert "Too many mismatches" in it.theirs.text
    assert 6 not in it.theirs.accused
    assert it.we_accuse == {6}


# 9. One odd file ends the analysis of all.


def changed(rank: int, **fields: Any) -> dict[int, Callable[[Dump], Any]]:
    """A job's change: other values of some fields of one rank's dump."""
    return {rank: lambda dump: {**dump, **fields}}


@case("a missing file")
def _missing_file(folder: Path) -> None:
    late_rank_2().write(folder, leave_out=[3])


@case("a truncated file")
def _truncated(folder: Path) -> None:
    late_rank_2(changes={3: lambda dump: pickle.dumps(dump, protocol=2)[:-200]}).write(folder)


@case("a stray file")
def _stray(folder: Path) -> None:
    late_rank_2().write(folder)
    (folder / "nccl_trace_rank_3.bak").write_bytes((folder / "nccl_trace_rank_3").read_bytes())


@case("a numbered stray file")
def _numbered_stray(folder: Path) -> None:
    late_rank_2().write(folder)
    (folder / "core.4711").write_bytes(b"\x7fELF" + bytes(100))


@case("another version")
def _version(folder: Path) -> None:
    late_rank_2(changes=changed(3, version="2.9")).write(folder)


@case("an unknown op")
def _unknown_op(folder: Path) -> None:
    odd = call("all_permute", line=32)
    steps = [STEPS[0], odd, STEPS[1]]
    job({0: [*steps, LAST], 1: [*steps, LAST], 2: steps, 3: [*steps, LAST]}).write(folder)


@case("a hashed group name")
def _hashed(folder: Path) -> None:
    def rename(dump: Dump) -> Dump:
        hashed = "3f786850e387550fdab836ed7e6dc881de23001b"
        entries = [{**e, "process_group": (hashed, e["process_group"][1])} for e in dump["entries"]]
        return {**dump, "entries": entries}

    late_rank_2(changes=dict.fromkeys(range(4), rename)).write(folder)


@case("gloo")
def _gloo(folder: Path) -> None:
    def by_gloo(dump: Dump) -> Dump:
        untimed = {"state": SCHEDULED, "time_discovered_started_ns": None, "time_discovered_completed_ns": None}
        entries = [
            {**e, **untimed, "profiling_name": e["profiling_name"].replace("nccl", "gloo")} for e in dump["entries"]
        ]
        return {
            **dump,
            "comm_lib_version": "",
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
            "entries": entries,
        }

    late_rank_2(changes=dict.fromkeys(range(4), by_gloo)).write(folder)


ENDS = {
    "a missing file": "AssertionError: Missing dump files from ranks {3}",
    "a truncated file": "Error",
    "a stray file": "ValueError: invalid literal for int()",
    "a numbered stray file": "ValueError: Unable to automatically determine the common prefix",
    "another version": "AssertionError: Rank 3 has different version",
    "an unknown op": "AssertionError: all_permute is not a supported operation",
    "a hashed group name": "KeyError",
    "gloo": "KeyError",
}


@pytest.mark.parametrize("name", ENDS)
def test_9_one_odd_file_does_not_end_the_analysis(cases: Mapping[str, Case], name: str) -> None:
    it = cases[name]
    assert ENDS[name] in it.theirs.error
    assert not it.theirs.accused
    assert it.we_accuse == {2}


@pytest.mark.parametrize("name", ["a missing file", "a truncated file"])
def test_9_what_is_lost_is_told(cases: Mapping[str, Case], name: str) -> None:
    absent = cases[name].ours.diagnosis.inventory.absent
    assert any("rank 3" in a.what or "rank_3" in f"{a.what} {a.reason}" for a in absent), absent


# 10. A rank without a dump is evidence.


@case("a rank without a dump", "--allow-incomplete-ranks")
def _no_dump(folder: Path) -> None:
    everybody(4, [*STEPS, LAST]).write(folder, leave_out=[3])


def test_10_a_rank_without_a_dump_is_named(cases: Mapping[str, Case]) -> None:
    it = cases["a rank without a dump"]
    assert "We cannot decide what's wrong" in it.theirs.text
    assert not it.theirs.accused
    assert it.we_accuse == {3}


# 11. An answer for people and programs.


def test_11_the_culprits_lines_json_and_the_exit_code(cases: Mapping[str, Case]) -> None:
    it = cases["plain"]
    assert it.theirs.missing == {2}
    assert it.theirs.exit_code == 0, "as for a healthy job"
    assert "train.py:33" not in it.theirs.text, "the last line that rank 2 is known to have come to"
    assert "json" not in cases["its help"].theirs.text.lower()
    run = subprocess.run(
        [UNHANG, "diagnose", it.folder, "--output-format", "json"], capture_output=True, text=True, timeout=30
    )
    assert run.returncode == 1, run.stderr
    first = json.loads(run.stdout)["findings"][0]
    assert first["culprit_ranks"] == [2]
    assert first["location"] == {"file": "/home/me/train.py", "line": 44, "function": "train"}
    assert any("rank 2" in e["source"] and "train.py:33" in e["text"] for e in first["evidence"])


@case("healthy")
def _healthy(folder: Path) -> None:
    everybody(4, STEPS, quiet_s=LIVE_S).write(folder)


def test_11_the_exit_code_of_a_healthy_job(cases: Mapping[str, Case]) -> None:
    it = cases["healthy"]
    assert it.theirs.accused == set()
    assert it.we_find_nothing()


# 12. Work grows with the square of the ranks.

WORLDS = (32, 64, 128)


def pairs(world: int) -> SmallJob:
    """A healthy job of pairs, each with its own group."""
    groups = {f"pair{r}": (r, r + 1) for r in range(0, world, 2)}
    calls = {r: [call("all_reduce", group=f"pair{r - r % 2}")] * 3 for r in range(world)}
    return SmallJob(calls, {WORLD: tuple(range(world)), **groups}, quiet_s=LIVE_S)


for _world in WORLDS:

    @case(f"{_world} ranks")
    def _pairs(folder: Path, world: int = _world) -> None:
        pairs(world).write(folder)


def python_calls(work: Callable[[], object]) -> int:
    """How many Python functions are called in it: the same on every machine, unlike its time."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_12_the_work_grows_with_the_ranks_not_with_their_square(cases: Mapping[str, Case]) -> None:
    small, middle, large = (cases[f"{world} ranks"] for world in WORLDS)
    assert middle.theirs.peers_listed > 3.5 * small.theirs.peers_listed
    assert large.theirs.peers_listed > 3.5 * middle.theirs.peers_listed
    assert all(it.we_find_nothing() for it in (small, middle, large))
    ours = [python_calls(lambda it=it: it.ours) for it in (small, middle, large)]  # type: ignore[misc]
    assert ours[1] < 2.3 * ours[0]
    assert ours[2] < 2.3 * ours[1]
