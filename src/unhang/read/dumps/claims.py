"""Whose each dump is, where several claim one rank: later attempts first, then content, then the order of folders.

A home is what lies together: the folder and the beginning of the name, without attempts, snapshots and moments. Nothing
is ever mixed of two homes, of two attempts or of two snapshots without a note that says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

from unhang.model import Unavailable
from unhang.read.dumps.identity import NO_GENERATION, Generation, Identity, Named, folder

Home = tuple[str, ...]


@dataclass(slots=True)
class Found:
    """A file that is a dump. `folders`: the names of the folders it lies in, an archive being one of them."""

    path: str
    member: str
    folders: tuple[str, ...]
    name: Named
    size: int
    written_ns: int


# Asked where names do not say enough, so that a folder of many thousands is listed, not read.
Identify = Callable[[Found], Identity]


@dataclass(frozen=True, slots=True)
class Claim:
    """A file with what its path says: the rank, if any, and what it competes with."""

    file: Found
    number: int | None
    home: Home
    generation: Generation
    moment: tuple[tuple[int, str], ...]
    replica: str

    @property
    def age(self) -> tuple[int, bool, int, str]:
        """Sorts the preferred file first among those of one rank: the newest; no copy; the shortest name."""
        file = self.file
        return (-file.written_ns, file.name.is_copy, len(file.path) + len(file.member), file.path)


@dataclass
class Choice:
    """One file for each rank, the files they replace, and what has to be said about it.

    `jobs`: where there are several with equal ranks, the files of each; `files` are then those of the first.
    """

    files: dict[int, Claim] = field(default_factory=dict)
    older: list[Claim] = field(default_factory=list)
    notes: list[Unavailable] = field(default_factory=list)
    jobs: dict[str, dict[int, Claim]] = field(default_factory=dict)


def claims(files: Sequence[Found]) -> list[Claim]:
    """What the paths say, names of one shape in one folder being looked at together."""
    alike: dict[tuple[str, ...], list[Found]] = defaultdict(list)
    for file in files:
        if shape := file.name.shape:
            alike[(*file.folders, shape, file.name.suffix)].append(file)
    for group in alike.values():
        alike_names = [file.name for file in group]
        if len({n.chosen for n in alike_names}) == 1 and (better := choose_field(alike_names)) is not None:
            for file in group:
                name = file.name
                file.name = replace(name, number=name.fields[better], chosen=better, family=name.shape)
    by_folder = {
        (_place(f.folders).parent_rank, f.name.number) for f in files if _place(f.folders).parent_rank is not None
    }
    # One folder of a rank with many numbers in it is where that rank keeps the dumps of all.
    is_of_rank = len({rank for rank, _ in by_folder}) > 1 or len(by_folder) == 1
    return [_claim(file, is_of_rank) for file in files]


@dataclass(frozen=True, slots=True)
class _Place:
    """What the folders of a file say together."""

    home: Home
    generation: Generation
    moment: tuple[tuple[int, str], ...]
    replica: str
    rank: int | None
    parent_rank: int | None
    number: int | None


@lru_cache(1 << 14)
def _place(folders: tuple[str, ...]) -> _Place:
    parts = [folder(part) for part in folders]
    ranks = [p.rank for p in parts if p.rank is not None]
    return _Place(
        home=tuple(p.home for p in parts if p.home),
        generation=_joined([p.generation for p in parts]),
        moment=tuple(p.moment for p in parts if p.moment[0]),
        replica=next((p.replica for p in reversed(parts) if p.replica), ""),
        rank=ranks[-1] if ranks else None,
        parent_rank=parts[-1].rank if parts else None,
        number=parts[-1].number if parts else None,
    )


def _joined(generations: Sequence[Generation]) -> Generation:
    attempt, quorum, iteration = (tuple(n for g in generations for n in g[kind]) for kind in range(3))
    return attempt, quorum, iteration


def _claim(file: Found, folder_is_of_rank: bool) -> Claim:
    name, place = file.name, _place(file.folders)
    number = name.number
    if number is None:
        number = place.number if place.rank is None else place.rank
    elif place.parent_rank is not None and folder_is_of_rank and "rank" not in name.family.lower():
        number = place.parent_rank
    return Claim(
        file=file,
        number=number,
        home=(*place.home, name.family if number == name.number else ""),
        generation=_joined([place.generation, name.generation])
        if name.generation != NO_GENERATION
        else place.generation,
        moment=(*place.moment, name.moment) if name.moment[0] else place.moment,
        replica=name.replica or place.replica,
    )


def choose(files: Sequence[Found], identify: Identify) -> Choice:
    """One file per rank. `identify` reads whose dump a file is; it is asked only where the paths do not say."""
    choice = Choice()
    known = _named_or_read(claims(files), identify, choice)
    by_replica: dict[str, list[Claim]] = defaultdict(list)
    for claim in known:
        by_replica[claim.replica].append(claim)
    latest = {replica: _latest(by_replica[replica], choice) for replica in sorted(by_replica, key=natural)}
    numbers = [{_number(c) for c in part} for part in latest.values()]
    if sum(map(len, numbers)) > len(set().union(*numbers)):
        parts = {f"replica {replica}" if replica else "no replica": part for replica, part in latest.items()}
    else:
        parts = {"": [claim for part in latest.values() for claim in part]}
    for label, part in parts.items():
        for name, job in _resolved(part, identify, choice).items():
            choice.jobs[", ".join(filter(None, (label, name)))] = job
    _keep_first_job(choice)
    return choice


def _number(claim: Claim) -> int:
    return -1 if claim.number is None else claim.number


def _named_or_read(found: Sequence[Claim], identify: Identify, choice: Choice) -> list[Claim]:
    known = []
    for claim in found:
        if claim.number is None:
            rank = identify(claim.file).rank
            if rank is None:
                reason = "neither its name nor its content tells the rank; name it like trace_rank_3"
                choice.notes.append(Unavailable(show(claim), reason))
                continue
            claim = replace(claim, number=rank)
        known.append(claim)
    return known


def show(claim: Claim) -> str:
    """The file in words."""
    file = claim.file
    return f"{file.path}:{file.member}" if file.member else file.path


def _latest(found: Sequence[Claim], choice: Choice) -> list[Claim]:
    """The files of the last attempt, and of it of the last snapshot; one for each rank and home."""
    kept = list(found)
    for kind, words in enumerate(("attempt", "quorum", "snapshot")):
        numbers = {c.generation[kind] for c in kept if c.generation[kind]}
        if len(numbers) > 1:
            last = max(numbers)
            left_out = [c for c in kept if c.generation[kind] and c.generation[kind] != last]
            kept = [c for c in kept if not c.generation[kind] or c.generation[kind] == last]
            _note_older(left_out, kept, f"an earlier {words} than {'.'.join(map(str, last))}", choice)
    by_home: dict[Home, list[Claim]] = defaultdict(list)
    for claim in kept:
        by_home[claim.home].append(claim)
    return [claim for home in by_home.values() for claim in _newest_of_home(home, choice)]


def _note_older(left_out: Sequence[Claim], kept: Sequence[Claim], why: str, choice: Choice) -> None:
    choice.older += left_out
    lost = {c.number for c in left_out} - {c.number for c in kept}
    what = f"{len(left_out)} dumps of {why}"
    more = f"; {len(lost)} ranks have dumps only there: give that folder alone to judge it" if lost else ""
    choice.notes.append(Unavailable(what, f"only the last counts, and dumps of different moments are not mixed{more}"))


def _newest_of_home(found: Sequence[Claim], choice: Choice) -> list[Claim]:
    """Of folders or names with a date, the newest; older ones only if they hold none of its ranks."""
    kept: dict[int, Claim] = {}
    left_out: list[Claim] = []
    groups: dict[tuple[object, ...], list[Claim]] = defaultdict(list)
    for claim in found:
        groups[claim.moment, claim.generation].append(claim)
    newest = {key: max(c.file.written_ns for c in group) for key, group in groups.items()}
    for _, group in sorted(groups.items(), key=lambda item: (item[1][0].moment, newest[item[0]]), reverse=True):
        part: dict[int, Claim] = {}
        for claim in sorted(group, key=lambda c: c.age):
            if part.setdefault(_number(claim), claim) is not claim:
                choice.older.append(claim)
                reason = f"{show(part[_number(claim)])} is from the same rank, and it is newer or the original"
                choice.notes.append(Unavailable(show(claim), reason))
        if kept.keys() & part.keys():
            left_out += part.values()
        else:
            kept.update(part)
    if left_out:
        _note_older(left_out, list(kept.values()), "an earlier moment", choice)
    return list(kept.values())


def _resolved(found: Sequence[Claim], identify: Identify, choice: Choice) -> dict[str, dict[int, Claim]]:
    """The files of each job by rank; one job of no name where nothing speaks for several."""
    by_home: dict[Home, dict[int, Claim]] = defaultdict(dict)
    for claim in found:
        by_home[claim.home][_number(claim)] = claim
    numbers: dict[int, list[Home]] = defaultdict(list)
    for home, part in by_home.items():
        for number in part:
            numbers[number].append(home)
    disputed = {home for homes in numbers.values() if len(homes) > 1 for home in homes}
    chosen = {n: by_home[homes[0]][n] for n, homes in numbers.items() if homes[0] not in disputed}
    if not disputed:
        return {"": chosen}
    order = sorted(disputed, key=lambda home: [natural(part) for part in home])
    jobs = _Dispute({h: by_home[h] for h in order}, identify, choice).settled()
    if len(jobs) > 1:
        return {**jobs, "the rest": chosen} if chosen else jobs
    for number, claim in next(iter(jobs.values())).items():
        if chosen.setdefault(number, claim) is not claim:
            choice.older.append(claim)
            choice.notes.append(Unavailable(show(claim), f"{show(chosen[number])} has the same rank in its name"))
    return {"": chosen}


class _Dispute:
    """Several homes, in natural order, hold files of equal numbers."""

    def __init__(self, homes: Mapping[Home, Mapping[int, Claim]], identify: Identify, choice: Choice) -> None:
        self._homes, self._choice = homes, choice
        self._identities = {home: {n: identify(c.file) for n, c in part.items()} for home, part in homes.items()}
        worlds = [i.world for known in self._identities.values() for i in known.values() if i.world]
        self._world = max(worlds, default=0)

    def settled(self) -> dict[str, dict[int, Claim]]:
        """The files of each job by rank."""
        for attempt in (self._by_content, self._by_order):
            if (files := attempt()) is not None:
                return {"": files}
        return self._as_jobs() or {"": self._largest()}

    def _note(self, what: str, reason: str) -> None:
        self._choice.notes.append(Unavailable(what, reason))

    def _by_content(self) -> dict[int, Claim] | None:
        """Each home's ranks, from what its files say; those that say nothing lie as far off as their neighbours."""
        found: dict[int, Claim] = {}
        for home, part in self._homes.items():
            said = {n: i.rank for n, i in self._identities[home].items() if i.rank is not None}
            offsets = {rank - n for n, rank in said.items()}
            if len(said) < len(part) and len(offsets) != 1:
                return None
            for number, claim in part.items():
                rank = said[number] if number in said else number + min(offsets)
                if found.setdefault(rank, claim) is not claim:
                    return None
        self._note(
            "ranks by the names of the files", "names of several folders are equal; the ranks are from the content"
        )
        return found

    def _by_order(self) -> dict[int, Claim] | None:
        total = sum(map(len, self._homes.values()))
        if self._world != total or any(set(part) != set(range(len(part))) for part in self._homes.values()):
            return None
        if any(i.rank is not None for known in self._identities.values() for i in known.values()):
            return None
        found: dict[int, Claim] = {}
        for part in self._homes.values():
            first = len(found)
            found.update({first + number: claim for number, claim in part.items()})
        order = ", ".join(self._names()[:4]) + (", ..." if len(self._homes) > 4 else "")
        self._note(
            "ranks by the names of the files",
            f"ranks taken from folder order ({order}), because each folder counts from 0; name the files by global rank to be sure",
        )
        return found

    def _as_jobs(self) -> dict[str, dict[int, Claim]] | None:
        """Homes that cannot be of one world: each has more than half of its ranks."""
        if not all(self._is_job(home) for home in self._homes):
            return None
        return {name: dict(part) for name, part in zip(self._names(), self._homes.values(), strict=True)}

    def _is_job(self, home: Home) -> bool:
        known, part = self._identities[home], self._homes[home]
        world = max((i.world for i in known.values() if i.world), default=0)
        fits = all(i.rank is None or i.rank == n for n, i in known.items())
        return fits and max(part) < world < 2 * len(part)

    def _largest(self) -> dict[int, Claim]:
        """The home with most files, the newest of equals; of the others only what it lacks."""
        by_size = sorted(
            self._homes.values(),
            key=lambda part: (len(part), max(c.file.written_ns for c in part.values())),
            reverse=True,
        )
        found: dict[int, Claim] = {}
        left_out: list[Claim] = []
        for part in by_size:
            for number, claim in part.items():
                if found.setdefault(number, claim) is not claim:
                    left_out.append(claim)
        self._choice.older += left_out
        kept = show(next(iter(by_size[0].values())))
        self._note(
            f"{len(left_out)} dumps with equal names in {len(self._homes)} folders",
            f"names and content do not tell their ranks; those beside {kept} are used; name them by global rank, or give one folder",
        )
        return found

    def _names(self) -> list[str]:
        """The homes in words: where they differ."""
        homes = list(self._homes)
        same = _common_start(homes)
        same_end = _common_start([home[same:][::-1] for home in homes])
        return ["/".join(part for part in home[same : len(home) - same_end] if part) or "here" for home in homes]


def _common_start(homes: Sequence[Home]) -> int:
    """How many first parts all have in common."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*homes, strict=False)))


def _keep_first_job(choice: Choice) -> None:
    names = list(choice.jobs)
    choice.files = choice.jobs[names[0]]
    if len(names) == 1:
        choice.jobs = {}
        return
    listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    what = f"{len(names) - 1} of {len(names)} jobs with equal ranks ({listed})"
    choice.notes.append(Unavailable(what, f"each is judged on its own, here {names[0]}; give one folder to choose"))


def choose_field(group: list[Named]) -> int | None:
    """Which number is the rank, for names of one shape, if it is another than each name by itself suggests.

    torch writes `<prefix><rank>`, and the prefix is free: it may hold host names, job numbers and dates. So the rank is the
    number marked as one, else the last; names of equal shape in one folder show where that would be wrong.
    """
    chosen = group[0].chosen
    if len(group) < 2 or len({n.fields[chosen] for n in group}) == len(group):
        return None
    unique = [i for i in range(len(group[0].fields)) if len({n.fields[i] for n in group}) == len(group)]
    return unique[0] if len(unique) == 1 else None


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts node2 before node10."""
    return [(0, int(p), p) if p.isdecimal() else (1, 0, p) for p in re.split(r"(\d+)", text) if p]
