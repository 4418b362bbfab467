"""What the ranks can only tell together: how far their clocks are apart, and whether they see the same files."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from unhang.model import Reading, Unavailable
from unhang.preflight.context import Context
from unhang.preflight.party import Party
from unhang.probe.limited import TookTooLong, kept_while, limited
from unhang.probe.machine_clock import Bracket, bracket_offset

_ROUNDS = 3
_EXCHANGE_LIMIT_S = 20.0
_MAKE_LIMIT_S, _SEE_LIMIT_S, _PAUSE_S = 2.0, 4.0, 0.05


def read_offset(party: Party) -> Iterator[Reading | Unavailable]:
    """How far this rank's clock is ahead of the first rank's. Blocks up to the limits of four exchanges."""
    brackets: list[tuple[float, float] | None] = []
    for number in range(_ROUNDS):
        came_s = time.time()
        met = party.exchange(f"machine/clock/{number}", None, _EXCHANGE_LIMIT_S)
        is_whole = len(met) > 1 and set(met) >= set(party.present)
        brackets.append((came_s, time.time()) if is_whole else None)
    everyone: dict[int, Any] = party.exchange("machine/clocks", brackets, _EXCHANGE_LIMIT_S)
    first = min(everyone)
    pairs = [
        (Bracket(*theirs), Bracket(*ours))
        for theirs, ours in zip(everyone[first], brackets, strict=False)
        if theirs and ours
    ]
    found = bracket_offset([p[0] for p in pairs], [p[1] for p in pairs])
    if len(everyone) < 2 or found is None:
        yield Unavailable("machine.clock_offset", "the ranks did not meet, or a clock was set while they did")
        return
    is_first = first == party.member.rank
    fields = {
        "offset_s": 0.0 if is_first else round(found.offset_s, 4),
        "uncertainty_s": 0.0 if is_first else round(found.uncertainty_s, 4),
        "reference_rank": first,
    }
    yield Reading("machine.clock_offset", "", fields)


def read_shared(context: Context) -> Iterator[Reading | Unavailable]:
    """Whether this rank sees what the first rank writes into each folder. Blocks up to the limits of two exchanges and a look."""
    party, folders = context.party, context.options.folders
    first = min(party.present)
    is_writer = party.member.rank == first
    with ExitStack() as kept:
        tokens = [_kept_token(kept, folder) for folder in folders] if is_writer else []
        told: Any = party.exchange("machine/folders", tokens, _EXCHANGE_LIMIT_S).get(first) or []
        if not told:
            yield Unavailable("machine.folder_shared", "no folder was named (--folder)")
            return
        found = [_seen(folder, token) for folder, token in zip(folders, told, strict=False) if token.get("name")]
        party.exchange("machine/folders/seen", len(found), _EXCHANGE_LIMIT_S)  # the first rank removes nothing before
    yield from (
        Unavailable("machine.folder_shared", f"{folder}: {token['problem']}")
        for folder, token in zip(folders, told, strict=False)
        if not token.get("name")
    )
    for reading in found:
        yield Reading("machine.folder_shared", reading.subject, {**reading.fields, "writer_rank": first})


def _kept_token(kept: ExitStack, folder: Path) -> dict[str, str]:
    """Writes a file that is there until `kept` is closed, and says its name; or what was against it."""
    name = f".unhang-check-{uuid.uuid4().hex}"
    path = folder / name

    def make() -> None:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def remove() -> None:
        with suppress(OSError):
            os.unlink(path)

    try:
        kept.enter_context(kept_while(make, remove, _MAKE_LIMIT_S))
    except (TookTooLong, OSError, RuntimeError) as error:
        return {"problem": f"the first rank could not write there: {error}"}
    return {"name": name}


def _seen(folder: Path, token: dict[str, str]) -> Reading:
    """Looks for the file for some seconds: a network file system may show it late."""
    path, began = folder / token["name"], time.monotonic()

    def look() -> bool:
        while time.monotonic() - began < _SEE_LIMIT_S:
            if os.path.exists(path):
                return True
            time.sleep(_PAUSE_S)
        return False

    try:
        sees, problem = bool(limited(look, _SEE_LIMIT_S + 1)), ""
    except (TookTooLong, OSError, RuntimeError) as error:
        sees, problem = False, str(error)
    seconds = round(time.monotonic() - began, 2)
    return Reading("machine.folder_shared", str(folder), {"sees": sees, "after_s": seconds, "problem": problem or None})
