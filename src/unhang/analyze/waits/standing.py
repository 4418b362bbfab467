"""Of a job that was looked at from outside: in which calls its ranks stand, who waits for whom, and whether it moves at all.

Looks prove no hang: a job moves, it stalls, or it cannot be told. Nothing is known of groups, so that a rank outside of a
small group may look as if it were missing; what decides is whether that rank moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from unhang.analyze.activity import activity_of, in_communication, wait_in_c
from unhang.analyze.program.callpath import Path, user_path
from unhang.model import Case, Frame, RankEvidence, ThreadStack, WaitEdge, WaitsFor
from unhang.model.findings import name_ranks

_DISTRIBUTED = "torch/distributed/"
_WRAPPERS = ("c10d_logger.py", "torch/nn/modules/")
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
_OF_DEVICE = ("item()", "cpu()", "synchronize()", "synchronize", "tolist()", "numpy()", "float()", "int()", "bool()")
_NAMED = {"_engine_run_backward": "backward", "wait_tensor": "wait_tensor", "synchronize": "synchronize"}


_IDLE, _BUSY = 5, 90  # percent: a device that waits in a call of NCCL is busy
_BY_KEYS = (
    "new_group",
    "init_process_group",
    "wait()",
    "split_group",
    "_new_process_group_helper",
    "destroy_process_group",
)


class Word(StrEnum):
    """What the looks allow to say."""

    MOVES = "moves"
    STALLED = "stalled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Stand:
    """The call with others in which a rank stands. `path`: the user's way to it, outermost first. `number`: of the group that it makes."""

    rank: int
    op: str
    path: Path
    has_group: bool
    frames: tuple[Frame, ...]
    number: int | None = None

    @property
    def call(self) -> str:
        """`all_reduce`, `new_group #2`."""
        return self.op if self.number is None else f"{self.op} #{self.number}"

    @property
    def where(self) -> str:
        """`all_reduce (train.py:30)`."""
        frame = self.path[-1] if self.path else None
        return f"{self.call} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})" if frame else self.call

    @property
    def is_transfer(self) -> bool:
        """Whether it has one peer alone."""
        return self.op in _TRANSFERS

    @property
    def is_of_device(self) -> bool:
        """Whether it waits for its own device, which may be at work, or in a call that is not known."""
        return self.op in _OF_DEVICE


@dataclass(frozen=True)
class Standing:
    """What the looks say of the job, and in one sentence why."""

    word: Word
    text: str


def is_looked_at(case: Case) -> bool:
    """Whether the ranks were looked at from outside."""
    return any(e.look is not None for e in case.ranks.values())


def stands(case: Case, is_watched: bool = False) -> dict[int, Stand]:
    """The ranks that stand in a call with others, of those that were looked at. `is_watched`: of a job without looks, all."""
    looked = {r: e for r, e in case.ranks.items() if is_watched or e.look is not None}
    return {r: stand for r, e in looked.items() if (stand := _stand(e)) is not None}


def has_all_calls(case: Case) -> bool:
    """Whether the recorder's dumps tell of every rank that was looked at; not where all wait for keys, of which it keeps nothing."""
    rows = [case.calls.rank_rows(r) for r, e in case.ranks.items() if e.look is not None]
    if not rows or any(of.start == of.stop for of in rows):
        return False
    return not (found := stands(case)) or any(s.op not in _BY_KEYS for s in found.values())


def _stand(evidence: RankEvidence) -> Stand | None:
    stack = _caller(evidence)
    if stack is None or activity_of(evidence, thread=stack).kind in ("frozen", "dead", "shutdown"):
        return None
    has_group = evidence.look is None or evidence.look.has_group  # without a look it may have been given one
    op = _op(stack)
    number = evidence.look.group_number if evidence.look is not None and op == "new_group" else None
    return Stand(evidence.rank, op, user_path(stack.frames), has_group, stack.frames, number)


def _caller(evidence: RankEvidence) -> ThreadStack | None:
    """The thread in a call: the main one, else one that the main thread waits for in its own process."""
    main = evidence.main_stack
    if main is None or in_communication(main):
        return main
    if activity_of(evidence).kind != "lock":
        return None
    own = (s for s in evidence.own_stacks if not s.is_main)
    return next((s for s in own if in_communication(s) and user_path(s.frames)), None)


def _op(stack: ThreadStack) -> str:
    """The public function of torch.distributed, the outermost one above the user's frame."""
    name = ""
    for frame in stack.frames:
        if frame.is_user and name:
            break
        if frame.function in _NAMED:
            name = name or _NAMED[frame.function]
        elif _DISTRIBUTED in frame.file and not any(part in frame.file for part in _WRAPPERS):
            name = frame.function
    return name or next((what for f in stack.frames[:1] if (what := wait_in_c(f))), "") or "a call with others"


def seen_edges(case: Case) -> Iterator[WaitEdge]:
    """Who waits for whom by the stacks of the looks; nothing where dumps of all ranks tell more.

    Sends and receives are among the pending calls where their peer is known.
    """
    found = stands(case)
    if not found or has_all_calls(case):
        return
    unseen = set(case.world) - set(case.ranks)
    absent = unseen - set(case.out_of_sight)
    elsewhere = {r for r, e in case.ranks.items() if r not in found and e.look is not None} | absent
    collectives = {r: s for r, s in found.items() if not (s.is_transfer or s.is_of_device)}
    for rank, stand in found.items():
        if stand.is_transfer:
            if not any(c.peer is not None for c in case.ranks[rank].pending):
                yield WaitEdge(rank, (), "p2p", stand.where)
            continue
        targets, mismatch = _targets(stand, collectives, elsewhere, set(found) - set(collectives), case.out_of_sight)
        yield WaitEdge(rank, tuple(sorted(targets)), "collective", stand.where, mismatch=mismatch)


def _targets(
    stand: Stand,
    collectives: Mapping[int, Stand],
    elsewhere: Collection[int],
    others: Collection[int],
    out_of_sight: Collection[int],
) -> tuple[Collection[int], bool]:
    """For whom a rank waits, and whether these stand in another call. A group that was given may have other members.

    `others`: those in sends and receives, or in a wait for their device: what they come to next is not told.
    """
    if elsewhere:
        return (elsewhere if not stand.has_group or len(elsewhere) == 1 else ()), False
    if stand.is_of_device:
        return (), False
    if others:
        return (others if not stand.has_group else ()), False
    apart = [r for r, s in collectives.items() if not are_same(s, stand)]
    if apart:
        return apart, True
    return (out_of_sight if not stand.has_group else ()), False


def are_same(one: Stand, other: Stand) -> bool:
    """Whether two ranks are in the same call of the program."""
    return (one.call, _places(one.path)) == (other.call, _places(other.path))


def _places(path: Path) -> list[tuple[str, int, str]]:
    return [(f.file.rsplit("/", 1)[-1], f.line, f.function) for f in path]


def sides(found: Iterable[Stand]) -> list[list[Stand]]:
    """The ranks in the same call of the program together, most first."""
    sorted_out: list[list[Stand]] = []
    for stand in found:
        same = next((side for side in sorted_out if are_same(side[0], stand)), None)
        if same is None:
            sorted_out.append([stand])
        else:
            same.append(stand)
    return sorted(sorted_out, key=lambda side: (-len(side), side[0].rank))


# Whether it moves


def standing(case: Case, waits: WaitsFor) -> Standing | None:
    """What the looks say; None of a job that was not looked at from outside."""
    if not is_looked_at(case):
        return None
    found = stands(case)
    moving = [r for r in found if _moved(case, r) is True]
    if moving:
        return Standing(Word.MOVES, f"{name_ranks(moving)} {_verb(moving, 'goes', 'go')} from call to call")
    if not found:
        return _without_calls(case)
    targeted = [e for e in waits.edges if e.targets]
    if targeted:
        return _of_waits(case, waits, found)
    return _nobody_named(case, found)


def parted(found: Standing | None, is_crossed: bool) -> Standing | None:
    """The same where NCCL has counted the calls of ranks whose programs have parted: then looks need not tell."""
    if found is None or found.word is not Word.UNKNOWN or not is_crossed:
        return found
    return Standing(Word.STALLED, f"{found.text}; NCCL has counted calls that differ between ranks")


def _moved(case: Case, rank: int) -> bool | None:
    evidence = case.ranks.get(rank)
    return evidence.look.moved if evidence is not None and evidence.look is not None else None


def _all_changed(case: Case) -> bool:
    """Whether something of every rank's stack has changed; where nobody waits for another one, that is as much as can be asked."""
    return all(e.look is not None and e.look.changed for e in case.ranks.values())


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def _without_calls(case: Case) -> Standing:
    """No rank is in a call with others."""
    ranks = sorted(case.ranks)
    moving = [r for r in ranks if _moved(case, r) is True]
    if moving:
        return Standing(Word.MOVES, f"no rank waits for another one; {_doings(case, moving)}")
    if _all_changed(case):
        return Standing(Word.MOVES, f"no rank waits for another one, and all of them run; {_doings(case, ranks)}")
    are_over = all(activity_of(case.ranks[r]).kind in ("shutdown", "frozen") for r in ranks)
    if ranks and are_over and not any(_moved(case, r) is None for r in ranks):
        return Standing(Word.STALLED, _doings(case, ranks))
    return Standing(Word.UNKNOWN, f"no rank waits for another one in a call; {_doings(case, ranks)}")


def _of_waits(case: Case, waits: WaitsFor, found: Mapping[int, Stand]) -> Standing:
    waiting = sorted(found)
    call = found[waiting[0]].where if len(sides(found.values())) == 1 else "calls with others"
    unseen = [r for r in waits.roots if r in case.out_of_sight]
    seen = [r for r in waits.roots if r not in case.out_of_sight]
    text = f"{name_ranks(waiting)} {_verb(waiting, 'waits', 'wait')} in {call}"
    if seen:
        text += f" for {name_ranks(seen)}: {_doings(case, seen)}"
    if unseen and not seen:
        text += f"; {name_ranks(unseen)} {_verb(unseen, 'was', 'were')} not looked at: {UNSEEN}"
        return Standing(Word.UNKNOWN, text)
    if any(_moved(case, r) is True for r in seen):
        return Standing(Word.MOVES, text)
    if _may_move(case, seen, found):
        return Standing(Word.UNKNOWN, f"{text}; looks do not tell whether that comes to an end")
    return Standing(Word.STALLED, text)


def _may_move(case: Case, awaited: Sequence[int], found: Mapping[int, Stand]) -> bool:
    """Whether somebody may, by what is seen: one who is waited for, or who waits in another call than for its device."""
    runs = any(r in case.ranks and _moved(case, r) is None for r in awaited)
    in_device = any(found[r].is_of_device for r in awaited if r in found)
    return runs or in_device or any(_moved(case, r) is None for r, stand in found.items() if not stand.is_of_device)


UNSEEN = "attach on their nodes too (--nodes)"


def _nobody_named(case: Case, found: Mapping[int, Stand]) -> Standing:
    """All are in one call, or nothing tells who belongs to a call."""
    waiting, others = sorted(found), sorted(set(case.ranks) - set(found))
    calls = "; ".join(
        f"{name_ranks([s.rank for s in side])} {_verb(side, 'is', 'are')} in {side[0].where}"  # type: ignore[arg-type]
        for side in sides(found.values())[:4]
    )
    if any(_moved(case, r) is True for r in others):
        return Standing(Word.MOVES, f"{calls}; {_doings(case, others)}")
    if _all_changed(case):
        return Standing(Word.MOVES, f"all of them run; {calls}")
    if any(_moved(case, r) is None for r in (*waiting, *others)) or any(s.is_of_device for s in found.values()):
        return Standing(Word.UNKNOWN, f"{calls}; {_doings(case, others) or _how(case, waiting)}")
    if others:
        text = f"{calls}, of which the group is not known from outside; {_doings(case, others)}"
        return Standing(Word.UNKNOWN, text)
    if len(sides(found.values())) == 1 and len(waiting) > 1:
        text = f"all {len(waiting)} ranks that were seen are in {found[waiting[0]].where}, and none moves: {_why(case, found)}"
        text += f"; nobody is accused{_transport(case)}"
        return Standing(Word.STALLED, text)
    return Standing(Word.STALLED if len(waiting) > 1 else Word.UNKNOWN, f"{calls}, and none moves")


def _why(case: Case, found: Mapping[int, Stand]) -> str:
    """What it means that all are in the same call."""
    op = next(iter(found.values())).op
    if op in _BY_KEYS:
        return "each waits for a key that another one sets; the ranks may have made different groups or keys before"
    second = (stack for r in found for stack in case.ranks[r].stacks if not stack.is_main and in_communication(stack))
    others = {stack.name: _op(stack) for stack in second if user_path(stack.frames)}
    if others:
        name, other = next(iter(others.items()))
        return f"a second thread ({name}) is in {other}, and calls of two threads have no common order"
    unseen = [r for r in case.world if r not in case.ranks]
    missing = f"one of {name_ranks(unseen)}, which was not seen, " if unseen else ""
    return f"{missing or 'a device, the network, or the order of groups '}holds them"


def _transport(case: Case) -> str:
    """What of devices and connections tells where to look."""
    looks = {r: e.look for r, e in case.ranks.items() if e.look is not None}
    stuck = [(r, *look.unsent[0]) for r, look in looks.items() if look.unsent]
    text = "".join(f"; rank {r} has {left} bytes for {peer} that are not taken" for r, peer, left in stuck[:3])
    idle = [r for r, look in looks.items() if look.busy is not None and look.busy < _IDLE]
    busy = [r for r, look in looks.items() if look.busy is not None and look.busy > _BUSY]
    if idle and busy:
        text += f"; the devices of {name_ranks(busy)} are busy, {_verb(idle, 'that', 'those')} of {name_ranks(idle)} {_verb(idle, 'is', 'are')} not"
    return text


def _how(case: Case, ranks: Sequence[int]) -> str:
    return "; ".join(f"rank {r}: {look.how}" for r in ranks[:4] if (e := case.ranks.get(r)) and (look := e.look))


def _doings(case: Case, ranks: Sequence[int]) -> str:
    """What each of a few ranks does, where it stands, and whether it moved."""
    said = [_doing(case, r) for r in ranks[:4]]
    more = f"; and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return "; ".join(said) + more


def _doing(case: Case, rank: int) -> str:
    evidence = case.ranks.get(rank)
    if evidence is None:
        return f"of rank {rank} there is no process here"
    activity = activity_of(evidence)
    frame = activity.frame
    at = f" at {frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})" if frame else ""
    look = f" ({evidence.look.how})" if evidence.look is not None and evidence.look.how else ""
    return f"rank {rank} is in {activity.detail}{at}{look}"
