"""Takes back a setting that only an older torch needs, before this torch reads it and warns about it in every rank."""

from __future__ import annotations

import os
import sys

OLD_NAME = "TORCH_NCCL_TRACE_BUFFER_SIZE"
ADDED_BY_US = "UNHANG_ADDED"
# From here on torch surely knows the new name, TORCH_FR_BUFFER_SIZE.
_KNOWS_NEW_NAME = (2, 10)


def torch_version() -> tuple[int, int] | None:
    """Major and minor version of the torch that is loaded."""
    text = getattr(sys.modules.get("torch"), "__version__", "")
    parts = str(text).split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])


def drop_old_names() -> None:
    """Unset the old name of the recorder's buffer size where unhang had set it and torch knows the new one."""
    version = torch_version()
    if version is not None and version >= _KNOWS_NEW_NAME and os.environ.pop(ADDED_BY_US, "") == OLD_NAME:
        os.environ.pop(OLD_NAME, None)
