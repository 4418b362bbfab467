"""`@unhang.record`: the traceback of the main function is kept where the launcher looks for it."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from unhang.errors import PeerFailed
from unhang.guard.neighbours import STOPPED_S
from unhang.guard.telling import in_words, traceback_of

F = TypeVar("F", bound=Callable[..., Any])
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def record(main: F) -> F:
    """Keeps the exception that leaves `main`, in the file that torchrun reads for its summary, and raises it again.

    Works under any launcher; without one it changes nothing.

    Example:
        ```python
        import unhang

        @unhang.record
        def main(steps: int) -> int:
            return steps * 2

        print(main(21))  # 42
        ```
    """

    @functools.wraps(main)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except SystemExit as error:
            if error.code not in (0, None):
                keep(error)
            raise
        except Exception as error:
            keep(error)
            raise

    return recorded  # type: ignore[return-value]


def keep(error: BaseException) -> None:
    """Writes the error into the file that torchrun reads, unless one stands there. Never raises; nothing under other launchers."""
    with suppress(Exception):
        path = os.environ.get(ERROR_FILE, "")
        if not path or os.path.exists(path):
            return
        message = {
            "message": in_words(error),
            "extraInfo": {"py_callstack": traceback_of(error), "timestamp": str(_time_s(error))},
        }
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            json.dump({"message": message}, file)
        sys.stderr.flush()


def _time_s(error: BaseException) -> int:
    """When it happened, in whole seconds: the launcher names the earliest as the cause, so an echo is later than its cause.

    A rank that was stopped cannot tell it itself, and dies of the launcher's signal when it goes on; then this is no echo.
    """
    now_s = int(time.time())
    if not isinstance(error, PeerFailed):
        return now_s
    was_stopped = (error.failure or {}).get("kind") == "stopped"
    return now_s - int(STOPPED_S) if was_stopped else now_s + 1
