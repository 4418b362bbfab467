"""A look at a job of many ranks, in two stages: every node tells how its ranks stand in a few bytes, and few nodes send their files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from unhang.analyze.alike import MOST_NODES, Told, choose, tell
from unhang.analyze.situation import Situation
from unhang.errors import UnhangError
from unhang.read.alike import ALIKE
from unhang.read.bundle import read_bundle
from unhang.watch.ranks import write_whole

MANY_RANKS = 512
OWN = ""  # the hub's own node, among the others
MOST_FAILED = 16


def world_of(folders: Iterable[Path]) -> int:
    """How many ranks the job has, by the word of these processes; 0 where none tells."""
    found = [0]
    for folder in folders:
        with suppress(OSError, ValueError, AttributeError, TypeError):
            found.append(int(json.loads((folder / "identity.json").read_bytes()).get("world_size") or 0))
    return max(found)


def told_of(run_dir: Path) -> Told | None:
    """What a node says of its own ranks after a look, those included that have ended; None where nothing can be read of them."""
    with suppress(UnhangError):
        case = read_bundle(run_dir / "ranks", trusted=True)
        return tell(Situation(case), case.ranks.keys())
    return None


class Selection:
    """The nodes that are read, and what is written of the others. `nodes`: `OWN` for the hub's own."""

    def __init__(self, told: Mapping[str, Told], world: int, silent: Collection[int]) -> None:
        """`told`: what the nodes say that looked. `silent`: the ranks of the others."""
        chosen = choose(told)
        self.nodes, self._is_whole = chosen.nodes, chosen.is_whole
        heard = {rank for one in told.values() for rank in one.ranks}
        self._unseen = sorted(set(silent) - heard)
        missing = set(range(world)) - heard - set(self._unseen)
        self.ranks = tuple(sorted({*missing, *(rank for node in chosen.nodes for rank in told[node].ranks)}))
        self._world, self._kinds = world, chosen.kinds

    def write(self, run_dir: Path) -> None:
        """Writes what the reader must know of those that are not read."""
        fields = {
            "world": self._world,
            "read": self.ranks,
            "unseen": self._unseen,
            "is_whole": self._is_whole,
            "kinds": self._kinds[:MOST_NODES],
        }
        write_whole(run_dir / ALIKE, json.dumps(fields).encode())


def write_read_alone(run_dir: Path, world: int, ranks: Collection[int]) -> None:
    """The reader is told that these ranks were read and that nothing is known of the others."""
    fields = {"world": world, "read": sorted(ranks), "unseen": [], "is_whole": False}
    write_whole(run_dir / ALIKE, json.dumps(fields).encode())
