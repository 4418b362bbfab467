"""Small jobs of which torchfrtrace says something wrong, by the number of its fault in `test_torchfrtrace_faults.py`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.dumps.small_dumps import LIVE_S, SCHEDULED, STARTED, WORLD, Call, Dump, SmallJob, batch, call, everybody, job

# By name: what writes the dumps, and further arguments for torchfrtrace.
CASES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {}


def case(name: str, *arguments: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    """Registers dumps under a name; `arguments`: further ones for torchfrtrace."""

    def register(write: Callable[[Path], object]) -> Callable[[Path], object]:
        CASES[name] = (write, arguments)
        return write

    return register


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


# 4. Ranks of a running job are never at the same moment.


@case("a running job")
def _running(folder: Path) -> None:
    ahead, other = [*STEPS, replace(LAST, state="completed")], [*STEPS, LAST]
    job({0: ahead, 1: other, 2: other, 3: other}, quiet_s=LIVE_S).write(folder)


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


# 7. What an all_gather gives must have room for what the ranks put in; the name is misspelled in the check.


@case("all_gather without room")
def _no_room(folder: Path) -> None:
    gather = call("_all_gather_base", (4,), (12,), state=STARTED, line=44)
    everybody(4, [*STEPS, gather]).write(folder)


# 8. Waits go across groups.


@case("a culprit in another group")
def _across_groups(folder: Path) -> None:
    """Two pipeline stages of two replicas of two shards; rank 3 does not come to its second call.

    Rank 2 waits in their tensor-parallel group, ranks 6 and 7 for what the first stage sends, all others for one of these
    in a data-parallel group. The hosts run ahead and have scheduled more.
    """
    groups = {
        **{f"tp{i}": (2 * i, 2 * i + 1) for i in range(4)},
        **{f"dp{i}": (i + i // 2 * 2, i + i // 2 * 2 + 2) for i in range(4)},
        **{f"pp{i}": (i, i + 4) for i in range(4)},
    }
    reached = {0: 3, 1: 3, 2: 1, 3: 1, 4: 3, 5: 3, 6: 0, 7: 0}  # the call of each rank that does not complete
    calls = {}
    for r, stuck in reached.items():
        tp, dp, pp = (
            next(g for g, ranks in groups.items() if g.startswith(kind) and r in ranks) for kind in ("tp", "dp", "pp")
        )
        layers = [call("all_reduce", group=tp, line=31), call("all_reduce", group=tp, line=33)]
        program = (
            [*layers, call("send 0->1", group=pp, line=37)]
            if r < 4
            else [call("recv 1<-0", group=pp, line=29), *layers]
        )
        program += [call("_reduce_scatter_base", (8,), (4,), group=dp, line=44), call("all_reduce", (1,), line=50)]
        states = ["completed"] * stuck + [STARTED] + [SCHEDULED] * len(program)
        calls[r] = [replace(c, state=state) for c, state in zip(program, states, strict=False)]
    calls[3] = calls[3][:1]
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


# 10. A rank without a dump is evidence.


@case("a rank without a dump", "--allow-incomplete-ranks")
def _no_dump(folder: Path) -> None:
    everybody(4, [*STEPS, LAST]).write(folder, leave_out=[3])


@case("healthy")
def _healthy(folder: Path) -> None:
    everybody(4, STEPS, quiet_s=LIVE_S).write(folder)


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
