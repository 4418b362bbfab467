"""`@unhang.record`: the traceback of the main function is kept where the launcher looks for it."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def record(main: F) -> F:
    """Keeps the exception that leaves `main`, in the file that torchrun reads for its summary, and raises it again.

    Works under any launcher; without one it changes nothing.
    """

    @functools.wraps(main)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except SystemExit as error:
            if error.code not in (0, None):
                _write(error)
            raise
        except Exception as error:
            _write(error)
            raise

    return recorded  # type: ignore[return-value]


def _write(error: BaseException) -> None:
    """Writes the file unless a more inner function has."""
    path = os.environ.get(ERROR_FILE, "")
    if not path or os.path.exists(path):
        return
    text = "".join(traceback.format_exception(error))
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))},
    }
    with suppress(OSError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            json.dump({"message": message}, file)
        sys.stderr.flush()
