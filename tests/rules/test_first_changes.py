"""First fixes with the very lines that change, each beside a program in which what they mend is not shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unhang.analyze.calls.framework_settings import asked_ahead, sets_as_they_come
from unhang.analyze.calls.handled import raised_in_loss
from unhang.analyze.calls.programs import unlike_copies
from unhang.analyze.program.decisions import loader_kinds, made_where_needed
from unhang.analyze.program.peers import groups_in_turn, made_in_a_loop, places_for_ranks
from unhang.analyze.program.sides import lost_dimension
from unhang.analyze.situation import Situation
from unhang.analyze.waits.outside_waits import ended_sleepers
from unhang.analyze.waits.own_threads import ended_server
from unhang.analyze.waits.polling import blocked_loop
from unhang.analyze.waits.transfers import LeftOutTransfer
from unhang.model import Frame, PendingCall, RaisedError, ThreadStack
from unhang.rules.base import card_of
from unhang.rules.framework_advice import of_asked_ahead, of_lost_dimension, of_sets_in_turn
from unhang.rules.host_waits import without_its_server
from unhang.rules.job.order import _transfer_left_out
from unhang.rules.registry import judge
from unhang.rules.remedies import make_for_all, of_handled
from unhang.testing import make_case, pending, raised

_TORCH = "/site-packages/torch/"


def _file(folder: Path, text: str, name: str = "train.py") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def _line(text: str, part: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


# A call left out: what most likely came out differently may stand below the line that was passed.

_LEFT_EARLY = """\
def main():
    for step in steps:
        backward(step)
        if step >= start and step % every == 0:
            save(step)
def save(step):
    if {test}:
        return
    dist.all_gather(parts, mine, group=own)
"""


@pytest.mark.parametrize(
    ("test", "line", "at"), [("os.path.exists(lock)", 9, 7), ("loss.isnan()", 9, 7), ("step < 3", 5, 4)]
)
def test_a_call_left_out_is_told_by_the_likeliest_condition_on_the_way_to_it(test: str, line: int, at: int) -> None:
    saves, trains = "own/all_gather[1]@main:5>save:9", "all_reduce[5]@main:3"
    made = {r: [trains, saves, trains, f"{trains if r == 1 else saves} !"] for r in range(3)}
    case = make_case(
        made,
        world=3,
        groups={"own": (0, 1, 2)},
        source=_LEFT_EARLY.format(test=test),
        stacks={r: "main:3>~comm" if r == 1 else "main:5>save:9>~comm" for r in range(3)},
    )
    first = judge(Situation(case)).findings[0]
    assert (first.rule, first.culprit_ranks, first.line) == ("call-left-out", (1,), at)
    assert f"train.py:{line} runs only if" in first.fixes[0].advice
    assert "ReduceOp.MIN" in first.fixes[0].advice


# An exception in the loss of a pipeline.

_LOSS = """\
def loss(out, tags):
    if not tags.any():
        raise NoTags("none")
    return F.cross_entropy(out, tags)
"""


@pytest.mark.parametrize(("part", "is_told"), [("raise", True), ("return", False)])
def test_a_loss_of_zero_takes_the_place_of_what_the_loss_of_a_pipeline_raises(
    part: str, is_told: bool, tmp_path: Path
) -> None:
    file = _file(tmp_path, _LOSS)
    frames = (
        Frame(file, _line(_LOSS, part), "loss"),
        Frame(_TORCH + "distributed/pipelining/schedules.py", 587, "_compute_loss"),
        Frame(file, 9, "step"),
    )
    error = RaisedError("NoTags", "none", 1, frames, handler=Frame(file, 12, "fit"))
    assert (raised_in_loss(error) is not None) is is_told
    assert raised_in_loss(replace(error, frames=(frames[0], frames[2]))) is None  # the program calls it
    fix = of_handled(make_case({}), error)[0][0]
    advice = fix if isinstance(fix, str) else fix.advice
    assert ("return out.sum() * 0.0" in advice) is is_told


_STAGES = """\
def main():
    for x in xs:
        try:
            step(x)
        except ValueError:
            skip(x)
"""


def _round(rank: int, peers: int, last: int) -> list[PendingCall]:
    """Transfers of a stage in four rounds: four to or from the next stage, and four back, `last` of them in the last round."""
    kinds = ("isend", "irecv") if rank == 0 else ("irecv", "isend")
    made = [(kind, 10 + i) for _ in range(3) for i, kind in enumerate(kinds) for _ in range(4)]
    made += [(kinds[0], 10)] * 4 + ([(kinds[1], 11)] if rank == 0 else [(kinds[0], 10)] * (last - 4))
    calls = [
        pending(kind, peer=peers, done=True, index=i, where=f"main:4>step:{line}")
        for i, (kind, line) in enumerate(made, 1)
    ]
    return [*calls[:-1], replace(calls[-1], ended_ns=None)]


@pytest.mark.parametrize("is_caught", [True, False])
def test_another_count_of_transfers_is_told_by_the_exception_amid_them(is_caught: bool) -> None:
    error = raised("ValueError: empty@main:4>step:10>load:20", 10.0)
    source = _STAGES + "\n" * 3 + "def step(x):\n    send(x)\n    recv(x)\n"
    case = make_case(
        {},
        world=2,
        source=source,
        pending={0: _round(0, 1, 4), 1: _round(1, 0, 5)},
        stacks={0: "main:4>step:11>~comm", 1: "main:4>step:10>~comm"},
    )
    file = case.ranks[0].main_frames[-1].file
    handled = replace(error, frames=tuple(replace(f, file=file) for f in error.frames), handler=Frame(file, 5, "main"))
    ranks = {**case.ranks, 1: replace(case.ranks[1], handled=(handled,) if is_caught else ())}
    rules = [f.rule for f in judge(Situation(replace(case, ranks=ranks))).findings]
    assert rules[0] == ("swallowed-exception" if is_caught else "uneven-inputs")


# A peer that is a place in a list of ranks.

_RING = """\
class Ring:
    def __init__(self, members):
        self.members = members
        self.me = {me}
        self.size = {size}
    @property
    def next(self):
        return (self.me + 1) % self.size
    def pass_on(self, x):
        dist.send(x, dst={peer})
"""


@pytest.mark.parametrize(
    ("me", "size", "peer", "shown"),
    [
        ("members.index(dist.get_rank())", "len(members)", "self.next", "self.members[self.next]"),
        ("members.index(name)", "len(members)", "self.next", ""),
        ("dist.get_rank()", "dist.get_world_size()", "self.next", ""),
        ("members.index(dist.get_rank())", "len(members)", "self.members[self.next]", ""),
    ],
)
def test_a_place_in_a_list_of_ranks_is_no_rank(me: str, size: str, peer: str, shown: str, tmp_path: Path) -> None:
    file = _file(tmp_path, _RING.format(me=me, size=size, peer=peer))
    found = places_for_ranks(Frame(file, 10, "pass_on"))
    assert (found.given[0][2] if found else "") == shown


@pytest.mark.parametrize(("peer", "kind"), [("2", ""), ("(rank + 2) % 4", "look")])
def test_the_right_rank_is_a_change_only_of_a_number(peer: str, kind: str) -> None:
    case = make_case(
        {0: ["barrier@main:1 !"], 1: ["barrier@main:1 !"]},
        source=f"def main(x):\n    dist.send(x, dst={peer})\n",
        pending={2: [pending("send", peer=0, where="main:2")], 3: [pending("recv", peer=2, where="main:2")]},
        stacks=dict.fromkeys(range(4), "main:2>~comm"),
    )
    assert judge(Situation(case)).findings[0].fixes[0].kind == kind


# Groups that each rank makes in an order of its own.

_TURN = """\
class Borders:
    def _group(self, other):
        pair = {pair}
        if pair not in self.groups:
            self.groups[pair] = dist.new_group(list(pair), use_local_synchronization=True)
        return self.groups[pair]
    def settle(self, shared):
        for other, tiles in {over}:
            dist.all_reduce(tiles, group=self._group({given}))
"""
_PAIR = "tuple(sorted((self.rank, other)))"


@pytest.mark.parametrize(
    ("pair", "over", "given", "new"),
    [
        (_PAIR, "shared.items()", "other", "sorted(shared.items(), key=lambda item: tuple(sorted((self.rank, item[0]))))"),
        (_PAIR, "sorted(shared.items(), key=size)", "other", "sorted(shared.items(), key=lambda item: tuple(sorted((self.rank, item[0]))))"),
        ("name_of(other)", "shared.items()", "other", ""),
        (_PAIR, "shared.items()", "self.first", ""),
    ],
)  # fmt: skip
def test_groups_that_are_made_in_turn(pair: str, over: str, given: str, new: str, tmp_path: Path) -> None:
    file = _file(tmp_path, _TURN.format(pair=pair, over=over, given=given))
    found = groups_in_turn((Frame(file, 5, "_group"), Frame(file, 9, "settle")))
    assert (found.new if found else "") == new
    if found:
        assert (found.owner, found.head.line, found.made.line) == ("Borders", 8, 5)


@pytest.mark.parametrize(("details", "is_crossed"), [(("0,1", "1,2", "0,2"), True), (("0,1", "0,1", ""), False)])
def test_ranks_that_wait_for_each_other_in_groups(details: tuple[str, ...], is_crossed: bool) -> None:
    made = {r: [pending("new_group", detail=d, where="main:3")] if d else [] for r, d in enumerate(details)}
    case = make_case({}, world=3, pending=made, stacks=dict.fromkeys(range(3), "main:3>~comm"))
    found = [f for f in judge(Situation(case)).findings if f.rule == "subgroup-not-created-by-all"]
    assert all((f.fixes[0].kind == "look") is is_crossed for f in found)
    assert found or not is_crossed


_IN_A_LOOP = """\
def main(ranks):
    for other in by_size():
        pair = tuple(sorted((rank, other)))
        groups[pair] = dist.new_group(list(pair), use_local_synchronization=True)
        {more}
"""


@pytest.mark.parametrize("more", ["pass", "dist.all_reduce(x, group=groups[pair])"])
def test_groups_that_are_made_in_a_loop_can_be_made_behind_it(more: str, tmp_path: Path) -> None:
    file = _file(tmp_path, _IN_A_LOOP.format(more=more))
    found = made_in_a_loop(Frame(file, 4, "main"))
    assert (found is not None) is (more == "pass")


@pytest.mark.parametrize(
    ("details", "waits_for"),
    [
        (("0,1", "1,2", "2,3", "0,3"), {0: (1,), 1: (2,), 2: (3,), 3: (0,)}),
        (("0,1", "0,1", "2,3", "2,3"), {}),
        (("0,1", "", "2,3", ""), {0: (1,), 2: (3,)}),
    ],
)
def test_a_group_that_its_members_alone_make_waits_for_them_alone(
    details: tuple[str, ...], waits_for: dict[int, tuple[int, ...]]
) -> None:
    made = {
        r: [replace(pending("new_group", detail=d, where="main:4"), tag=1)] if d else [] for r, d in enumerate(details)
    }
    source = _IN_A_LOOP.format(more="pass")
    case = make_case({}, world=4, pending=made, stacks=dict.fromkeys(range(4), "main:4>~comm"), source=source)
    s = Situation(case)
    assert {e.waiter: e.targets for e in s.waits.edges if e.kind == "new_group"} == waits_for
    found = [f for f in judge(s).findings if f.rule == "subgroup-not-created-by-all"]
    assert [f.fixes[0].title.startswith("Make the groups behind the loop") for f in found] == [True] * (
        len(waits_for) == 4
    )


# A module that one rank alone wraps.

_HEADS = """\
class Heads:
    def open(self, family):
        self.table[family] = DDP(head())
    def of(self, family):
        if {test}:
            self.open(family)
        return self.table[family]
def main():
    for family, x in batches:
        {under}heads.of(family)(x)
        dist.all_reduce(loss)
"""


@pytest.mark.parametrize(
    ("test", "under", "is_told"),
    [
        ("family not in self.table", "", True),
        ("family.is_new()", "", False),
        ("family not in self.table", "if x.any(): ", False),
    ],
)
def test_a_module_is_wrapped_on_every_rank_that_one_needs(test: str, under: str, is_told: bool, tmp_path: Path) -> None:
    file = _file(tmp_path, _HEADS.format(test=test, under=under))
    frames = (
        Frame(_TORCH + "nn/parallel/distributed.py", 900, "__init__"),
        *(Frame(file, line, name) for line, name in ((3, "open"), (6, "of"), (10, "main"))),
    )
    others = [(Frame(file, 11, "main"),)]
    assert (made_where_needed(frames, others) is not None) is is_told
    assert made_where_needed(frames, [(Frame(file, 2, "other"),)]) is None  # they may never come there
    assert made_where_needed(frames[1:], others) is None  # it is no module of DDP
    error = RaisedError("RuntimeError", "DDP expects same model", 1, frames)
    case = make_case({0: ["all_reduce[1]@main:11 !"]}, world=2)
    shown = make_for_all(case, error, (1,))
    assert shown is None  # of the program in the case nothing is known


# A wait for an event that a thread was to set, which has ended.

_SHIP = """\
class Shipper:
    def __init__(self):
        self.thread = threading.Thread(target=self._ship, daemon=True)
    def _ship(self):
        take()
    def flush(self):
        mark = {made}
        {give}
        mark.wait({limit})
"""


@pytest.mark.parametrize(
    ("made", "give", "limit", "runs", "is_told"),
    [
        ("threading.Event()", "self.records.put(mark)", "", False, True),
        ("threading.Event()", "self.records.put(mark)", "", True, False),
        ("threading.Event()", "self.records.put(mark)", "5", False, False),
        ("threading.Event()", "pass", "", False, False),
        ("ctx.Event()", "self.records.put(mark)", "", False, False),
    ],
)
def test_a_wait_for_a_thread_that_has_ended(
    made: str, give: str, limit: str, runs: bool, is_told: bool, tmp_path: Path
) -> None:
    file = _file(tmp_path, _SHIP.format(made=made, give=give, limit=limit))
    threads = [ThreadStack("shipping", (Frame(file, 5, "_ship"),))] if runs else []
    frame = Frame(file, 9, "flush")
    assert (ended_server(frame, threads) is not None) is is_told
    evidence = replace(make_case({}, world=1).ranks[0], stacks=tuple(threads))
    fix = without_its_server(evidence, frame)
    assert (fix is not None) is is_told
    if fix is not None:
        assert "while not mark.wait(1.0) and self.thread.is_alive():" in fix.advice


# An event of processes, a loader's sampler, an actor's loop.


@pytest.mark.parametrize(("ends", "inner", "is_told"), [("hand.terminate()", "notify", True), ("pass", "notify", False), ("hand.kill()", "wait", False)])  # fmt: skip
def test_sleepers_that_were_ended_by_force(ends: str, inner: str, is_told: bool, tmp_path: Path) -> None:
    file = _file(tmp_path, f"def trim(hand):\n    {ends}\ndef resume():\n    gate.set()\n")
    library = "/usr/lib/python3.11/multiprocessing/synchronize.py"
    frames = (Frame(library, 297, inner), Frame(library, 340, "set"), Frame(file, 4, "resume"))
    found = ended_sleepers(frames)
    assert (found is not None) is is_told
    assert found is None or found.ends.line == 2


@pytest.mark.parametrize(
    ("given", "even"), [("workers_of(store)", "0"), ("4", ""), ("own.workers, persistent_workers=True", "1")]
)
def test_a_sampler_that_is_asked_as_far_ahead_as_there_are_workers(given: str, even: str, tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        f"def revise():\n    dist.all_reduce(n)\ndef fit():\n    for x in DataLoader(data, num_workers={given}):\n        step(x)\n",
    )
    loader = Frame(_TORCH + "utils/data/dataloader.py", 715, "_next_index")
    frames = (Frame(file, 2, "revise"), loader, Frame(file, 4, "fit"))
    found = asked_ahead(frames)
    assert (found.even if found else "") == even
    assert asked_ahead((frames[0], frames[2])) is None  # the program asks the sampler itself
    fix = of_asked_ahead(frames)
    assert (fix is not None) is bool(even)
    assert fix is None or f"num_workers={even}" in fix.advice


_TALLY = """\
@ray.remote({options})
class Tally:
    def table(self):
        {wait}
    {kind} health(self):
        return {body}
"""


@pytest.mark.parametrize(
    ("options", "wait", "kind", "body", "threads"),
    [
        ("max_concurrency=8", "self.cond.wait()", "async def", "1", "max_concurrency=8"),
        ("num_cpus=0", "self.cond.wait()", "async def", "1", "max_concurrency=4"),
        ("max_concurrency=2", "self.cond.wait()", "async def", "1", "max_concurrency=4"),
        ("max_concurrency=8", "self.cond.wait()", "def", "1", ""),
        ("max_concurrency=8", "self.cond.wait()", "async def", "await self.ready.wait()", ""),
        ("max_concurrency=8", "work()", "async def", "1", ""),
    ],
)
def test_a_coroutine_keeps_the_methods_of_an_actor_in_one_thread(
    options: str, wait: str, kind: str, body: str, threads: str, tmp_path: Path
) -> None:
    file = _file(tmp_path, _TALLY.format(options=options, wait=wait, kind=kind, body=body))
    found = blocked_loop(Frame(file, 4, "table"), 3)
    assert (found is not None) is bool(threads)
    if found is not None:
        assert threads in found.threads
        assert found.coroutines == ((5, "def health(self):"),)


# What frameworks gather.

_SQUEEZED = """\
def collect(acc, rows):
    rows = acc.pad_across_processes(rows, dim=1)
    return acc.pad_across_processes(rows, dim=0)
def run(acc, net, x):
    told = net(x){squeeze}.relu()
    collect(acc, told.contiguous())
"""


@pytest.mark.parametrize(
    ("squeeze", "sizes", "is_told"),
    [(".squeeze()", (1, 2), True), (".squeeze(1)", (1, 2), False), (".squeeze()", (2, 2), False)],
)
def test_a_dimension_that_one_row_loses(squeeze: str, sizes: tuple[int, int], is_told: bool, tmp_path: Path) -> None:
    file = _file(tmp_path, _SQUEEZED.format(squeeze=squeeze))
    case = make_case({r: [f"all_gather[1x{n}] Long@run:6>collect:3 !"] for r, n in enumerate(sizes)}, world=2)
    inner = Frame("/site-packages/accelerate/utils/operations.py", 781, "_pad_across_processes")
    way = (Frame(file, 6, "run"), Frame(file, 3, "collect"))
    mine, theirs = (replace(case.calls.call(r), frames=(inner, *way[::-1])) for r in range(2))
    found = lost_dimension(mine, theirs, way)
    assert (found is not None) is is_told
    assert found is None or (found.at.line, found.whole) == (5, "net(x)")
    assert lost_dimension(replace(mine, frames=way[::-1]), theirs, way) is None  # the sizes are the program's own


_SETS = """\
def holdouts(jobs):
    {body}
def main():
    Trainer(eval_dataset=holdouts(jobs)).train()
"""


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        ("return {jobs[j]: j.result() for j in as_completed(jobs)}", True),
        ("return {jobs[j]: j.result() for j in jobs}", False),
        ("return [j.result() for j in as_completed(jobs)]", False),
    ],
)
def test_data_sets_that_stand_as_they_came(body: str, is_told: bool, tmp_path: Path) -> None:
    file = _file(tmp_path, _SETS.format(body=body))
    evaluates = Frame("/site-packages/transformers/trainer.py", 4000, "evaluate")
    situation = Situation(make_case({r: [f"all_gather[{r + 1}]@main:4 !"] for r in range(3)}, world=3))
    d = situation.divergence
    assert d is not None
    twice, once = ((*[evaluates] * n, Frame(file, 4, "main")) for n in (2, 1))
    both = [replace(d, odd_call=replace(d.odd_call, frames=f), reference_call=replace(d.reference_call, frames=f)) for f in (twice, once)]  # fmt: skip
    assert (sets_as_they_come(both[0], file) is not None) is is_told
    assert sets_as_they_come(both[1], file) is None  # one data set
    assert of_lost_dimension(both[0]) is None
    assert of_sets_in_turn(both[1]) is None


_LOADERS = """\
class Cached({kind}):
    pass
class Streamed(IterableDataset):
    pass
class Data(LightningDataModule):
    def train_dataloader(self):
        if {test}:
            return DataLoader(Cached(self.rows))
        return DataLoader(Streamed(self.rows))
"""


@pytest.mark.parametrize(
    ("kind", "test", "is_told"),
    [("Dataset", "len(self.rows) < 9", True), ("IterableDataset", "len(self.rows) < 9", False), ("Dataset", "epoch == 0", False)],
)  # fmt: skip
def test_a_loader_with_a_length_on_some_ranks(kind: str, test: str, is_told: bool, tmp_path: Path) -> None:
    _file(tmp_path, _LOADERS.format(kind=kind, test=test))
    found = loader_kinds(str(tmp_path))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.at.line, found.condition.text, found.leads.line) == (7, test, 9)


# A file of one name, in two copies.

_OF_KIT = """\
def compute(self):
    dist.all_reduce(self.sums)
{more}
"""


@pytest.mark.parametrize(
    ("more", "other", "is_told"),
    [
        ("    dist.all_reduce(self.hist)", "two", True),
        ("", "two", False),
        ("    dist.all_reduce(self.hist)", "one", False),
    ],
)
def test_ranks_that_run_two_copies_of_a_file(more: str, other: str, is_told: bool, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    (tmp_path / "one" / "kit.py").write_text(_OF_KIT.format(more=""))
    (tmp_path / other / "kit.py").write_text(_OF_KIT.format(more=more))
    files = [str(tmp_path / folder / "kit.py") for folder in ("one", other)]
    ways = tuple((Frame(file, 2, "compute"), Frame("train.py", 5, "main")) for file in files)
    table = make_case({r: ["all_reduce[8]@main:5"] for r in range(4)}).calls
    sides = (table["rank"] > 1).astype("i4")
    copied = replace(table, columns={**table.columns, "frames": sides}, stacks=ways)
    assert (unlike_copies(copied, 0, 2) is not None) is is_told
    assert unlike_copies(copied, 0, 1) is None


# A transfer that one side leaves out.

_STAGE = """\
def step(self):
    dist.send(x, dst=1)
    {first}:
        {then}
    y = dist.recv(x, src=1)
"""
_UNDER = """\
def step(self):
    if self.rank < 1:
        dist.send(x, dst=1)
        if {test}:
            y = dist.recv(x, src=1)
"""


@pytest.mark.parametrize(
    ("source", "sends", "told", "fix"),
    [
        (_UNDER.format(test="not self.frozen"), 3, 4, "Make the recv from rank 1 whatever `not self.frozen` is"),
        (_UNDER.format(test="rank == 0"), 3, 5, "Make every call of the round"),
        (_STAGE.format(first="if self.frozen", then="return"), 2, 3, "Make every call of the round"),
    ],
)
def test_the_line_that_lets_one_side_leave_a_transfer_out(source: str, sends: int, told: int, fix: str) -> None:
    usual = pending("recv", peer=1, done=True, where="step:5")
    instead = pending("send", peer=1, where=f"step:{sends}")
    waits = {0: [usual, instead], 1: [pending("send", peer=0, where="next:9")]}
    stacks = {0: f"step:{sends}>~comm", 1: "next:9>~comm"}
    s = Situation(make_case({}, world=2, pending=waits, source=source, stacks=stacks))
    usual, instead = s.case.ranks[0].pending  # in the file that can be read
    found = _transfer_left_out(s, (0, 1), LeftOutTransfer(0, usual, instead)).in_words_of(
        card_of("collective-order-race"), s
    )
    assert found.location is not None
    assert (found.location.line, found.fixes[0].title.startswith(fix)) == (told, True)


# A loop that a rank leaves by its own number: if all left together, the others' work would be lost.

_HOPS = """\
def main():
    for hop in range(world):
        source = rank - hop
        attend(dist.all_reduce(part))
        if {test}:
            log("over")
            break
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("test", "does", "expected"),
    [
        (
            "causal and source < 0",
            "",
            "Let every rank stay in the loop for what it exchanges: only its own work is up to",
        ),
        ("stopper.step(validate(model))", "decide together", "Let all ranks leave the loop together"),
    ],
)
def test_a_loop_that_is_left_by_the_ranks_number(test: str, does: str, expected: str) -> None:
    step = "all_reduce[8]@main:4"
    made = {3: [step, step, "barrier@main:8 !"], **{r: [step, step, f"{step} !"] for r in range(3)}}
    finding = judge(make_case(made, world=4, source=_HOPS.format(test=test))).first
    assert finding is not None
    assert (finding.line, finding.fixes[0].does) == (5, does)
    assert finding.fixes[0].title.startswith(expected)


_SKIPS = """\
def main():
    for x in loader:
        keep = usable(x)
        if not keep.any():
            continue
        loss = net(x[keep]).mean()
        loss.backward()
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("keep.any()", "Let a rank that has nothing make the round, too, with a loss of zero"),
        ("torch.isfinite(x).all()", "Let all ranks take the decision together"),
    ],
)
def test_a_round_without_items_is_no_reason_for_all_to_leave_it_out(test: str, expected: str) -> None:
    step = "all_reduce[8]@main:7"
    made = {2: [step, "barrier@main:8 !"], **{r: [step, f"{step} !"] for r in range(2)}}
    case = make_case(made, world=3, source=_SKIPS.replace("keep.any()", test))
    finding = judge(case).first
    assert finding is not None
    assert any(fix.title.startswith(expected) for fix in finding.fixes), [f.title for f in finding.fixes]
