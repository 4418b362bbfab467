"""C++ frames of ranks that hang, by `py-spy dump --native`: half a second of a processor and 300 MB for each, so only where they are asked for."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from unhang.watch.ranks import WatchedRank, write_whole

NATIVE, LIMIT_S = "native.json", 30.0
_AT_ONCE, _MOST_RANKS, _MOST_FRAMES, _LONGEST = 2, 16, 64, 300


def take_native(ranks: Sequence[WatchedRank], program: str | None, limit_s: float = LIMIT_S) -> None:
    """Writes native.json of each rank, at most 16 of them: the main thread's frames, or why there are none. Blocks: up to `limit_s`."""
    deadline = time.monotonic() + limit_s
    wanted = [rank for rank in ranks if not rank.probe.is_stopped()][:_MOST_RANKS]
    for at in range(0, len(wanted), _AT_ONCE):
        running = [(rank, _start(rank.pid, program)) for rank in wanted[at : at + _AT_ONCE]]
        for rank, process in running:
            write_whole(rank.folder / NATIVE, json.dumps(_ended(process, rank.pid, deadline)).encode())


def _start(pid: int, program: str | None) -> subprocess.Popen[bytes] | None:
    if program is None:
        return None
    with suppress(OSError):
        command = [program, "dump", "--json", "--native", "--full-filenames", "--pid", str(pid)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return None


def _ended(process: subprocess.Popen[bytes] | None, pid: int, deadline: float) -> dict[str, object]:
    if process is None:
        return {"missing": "py-spy is not installed"}
    try:
        out, said = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"missing": "py-spy --native had not ended in time"}
    with suppress(ValueError, TypeError, AttributeError):
        threads = json.loads(out)
        main = next((t for t in threads if t.get("os_thread_id") in (pid, None)), None)
        if main is not None:
            given = [(f.get("filename", ""), f.get("line", 0), f.get("name", "")[:_LONGEST]) for f in main["frames"]]
            return {"frames": given[:_MOST_FRAMES]}
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return {"missing": f"py-spy --native: {lines[0][:_LONGEST] if lines else 'no answer'}"}
