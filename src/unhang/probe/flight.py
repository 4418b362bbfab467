"""Asks a live rank for its calls: torch's C++ worker server for JSON (no GIL needed), the recorder's thread for a pickle."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)


def fetch_calls(folder: Path, timeout_s: float = 1.0) -> bytes | None:
    """The JSON dump of all calls of the rank in `folder`, or None where the server does not answer.

    Blocks: up to about `timeout_s`.
    """
    connection = _UnixConnection(str(folder / "fr.sock"), timeout_s)
    try:
        connection.request("POST", "/handler/fr_trace_json")
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 and body[:1] == b"{" else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def open_calls(dump: bytes) -> list[tuple[str, int, str]]:
    """(group, sequence number, op) of the calls that have not completed, for a cheap comparison of two dumps."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        entries: list[dict[str, Any]] = json.loads(dump).get("entries", [])
        return [
            (str(e["process_group"][0]), int(e["collective_seq_id"]), str(e["profiling_name"]))
            for e in entries
            if not (e.get("retired") or e.get("state") == "completed")
        ]
    return []


def request_pickles(folders: Sequence[Path], timeout_s: float = 1.0) -> list[Path]:
    """Makes the recorders write flight.pickle anew; returns the folders that did not answer (the GIL is held).

    Blocks: up to `timeout_s`.
    """
    waiting = [folder for folder in folders if _ask(folder)]
    silent = [folder for folder in folders if folder not in waiting]
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        waiting = [folder for folder in waiting if not (folder / "flight.pickle").exists()]
        if waiting:
            time.sleep(0.01)
    return silent + waiting


def _ask(folder: Path) -> bool:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    try:
        (folder / "flight.pickle").unlink(missing_ok=True)
        sender.sendto(b"dump", str(folder / "ctl.sock"))
        return True
    except OSError:
        return False
    finally:
        sender.close()
