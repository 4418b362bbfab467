"""The control groups that this process is in, of version 1 and 2: where a container's limits stand. Never blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 where there is no limit


def folders_of(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The folders that may limit us, from our own group up to the uppermost that is visible: each of them counts."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        places = [mount / names, mount / controller] if names else [mount, mount / "unified"]
        base = next((place for place in places if place.is_dir()), None)
        if base is None:
            continue
        own = Path(path.lstrip("/"))
        for part in (own, *own.parents):
            if ".." not in part.parts and (base / part).is_dir():
                yield base / part


def number_in(path: Path) -> int | None:
    """The number in a file of a control group; None where there is no limit, or no such file."""
    with suppress(OSError, ValueError):
        value = int(path.read_text().split()[0])
        return value if 0 <= value < _UNLIMITED else None
    return None


def fields_of(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number on each line (`memory.stat`); empty where there is none."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if value.strip().isdecimal():
                found[name] = int(value)
    return found
