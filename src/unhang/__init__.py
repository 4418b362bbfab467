"""unhang: why a distributed PyTorch job hangs, the rank, the line and the cause, in seconds.

What a training script may use is imported when it is first used, so that `import unhang` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unhang.guard.process_group import process_group as process_group
    from unhang.guard.record import record as record
    from unhang.recorder.install import install as install

_PUBLIC = {
    "install": "unhang.recorder.install",
    "process_group": "unhang.guard.process_group",
    "record": "unhang.guard.record",
}
__all__ = ["__version__", "install", "process_group", "record"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'unhang' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
