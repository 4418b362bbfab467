"""Name resolution, as the job will do it, with a limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name resolves to, in the order in which it would be tried. `error` says why there is nothing."""

    name: str
    addresses: tuple[str, ...] = ()
    took_s: float = 0.0
    error: str = ""


def resolve(name: str, limit_s: float, ask: Callable[..., list[tuple[object, ...]]] | None = None) -> Resolved:
    """Asks as the job does: files, name servers, both address families. Blocks up to `limit_s`.

    The question goes on in a background thread where no answer came in time: the resolver cannot be interrupted, and ends
    by its own timeout.
    """
    answer: list[Resolved] = []
    started = time.monotonic()

    def run() -> None:
        try:
            rows = (ask or socket.getaddrinfo)(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answer.append(Resolved(name, (), time.monotonic() - started, _reason(error)))
        else:
            found = dict.fromkeys(str(row[4][0]) for row in rows)  # type: ignore[index]
            answer.append(Resolved(name, tuple(found), time.monotonic() - started))

    thread = threading.Thread(target=run, daemon=True, name="unhang-resolve")
    thread.start()
    thread.join(limit_s)
    return answer[0] if answer else Resolved(name, (), limit_s, f"no answer within {limit_s:g} s")


def _reason(error: OSError | UnicodeError) -> str:
    return str(getattr(error, "strerror", None) or error)[:200]
