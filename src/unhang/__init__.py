"""unhang: why a distributed PyTorch job hangs, the rank, the line and the cause, in seconds.

What a training script may use is imported when it is first used, so that `import unhang` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unhang.errors import GroupInUse as GroupInUse
    from unhang.errors import PeerFailed as PeerFailed
    from unhang.errors import RanksDiffer as RanksDiffer
    from unhang.errors import SectionOverran as SectionOverran
    from unhang.errors import WeightSyncFailed as WeightSyncFailed
    from unhang.guard.align import align as align
    from unhang.guard.heartbeat import heartbeat as heartbeat
    from unhang.guard.installing import install as install
    from unhang.guard.learning import check_learning as check_learning
    from unhang.guard.loader_watch import watch_loader as watch_loader
    from unhang.guard.loading import LoaderFinding as LoaderFinding
    from unhang.guard.loading import check_loader as check_loader
    from unhang.guard.process_group import process_group as process_group
    from unhang.guard.record import record as record
    from unhang.guard.replicas import check_replicas as check_replicas
    from unhang.guard.same import assert_same as assert_same
    from unhang.guard.section import section as section
    from unhang.guard.section import sections as sections
    from unhang.guard.together import together as together
    from unhang.guard.weight_sync import WeightSync as WeightSync

_PUBLIC = {
    "align": "unhang.guard.align",
    "assert_same": "unhang.guard.same",
    "check_learning": "unhang.guard.learning",
    "check_loader": "unhang.guard.loading",
    "check_replicas": "unhang.guard.replicas",
    "GroupInUse": "unhang.errors",
    "heartbeat": "unhang.guard.heartbeat",
    "install": "unhang.guard.installing",
    "LoaderFinding": "unhang.guard.loading",
    "PeerFailed": "unhang.errors",
    "process_group": "unhang.guard.process_group",
    "RanksDiffer": "unhang.errors",
    "record": "unhang.guard.record",
    "section": "unhang.guard.section",
    "SectionOverran": "unhang.errors",
    "sections": "unhang.guard.section",
    "together": "unhang.guard.together",
    "watch_loader": "unhang.guard.loader_watch",
    "WeightSync": "unhang.guard.weight_sync",
    "WeightSyncFailed": "unhang.errors",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'unhang' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_PUBLIC[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
