"""Writes small files so that a reader never sees half of one, and a full disk never reaches the training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any


def write_whole(path: str, data: bytes) -> bool:
    """Write and rename. Returns whether the file is there; a full or read-only disk is not an error of the training."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        return False
    return True


def write_json(path: str, value: Mapping[str, Any]) -> bool:
    """Write one JSON object as a whole file."""
    return write_whole(path, json.dumps(value, default=str).encode("utf-8", "replace"))


def append_json(path: str, value: Mapping[str, Any]) -> bool:
    """Append one line. O_APPEND and a single write keep lines of several threads apart."""
    line = json.dumps(value, default=str).encode("utf-8", "replace") + b"\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return False
    try:
        os.write(fd, line)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
