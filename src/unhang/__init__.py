"""unhang: why a distributed PyTorch job hangs, the rank, the line and the cause, in seconds.

What a training script may use is imported when it is first used, so that `import unhang` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unhang.diagnosis import diagnose as diagnose
    from unhang.errors import GroupInUse as GroupInUse
    from unhang.errors import PeerFailed as PeerFailed
    from unhang.errors import RanksDiffer as RanksDiffer
    from unhang.errors import SectionOverran as SectionOverran
    from unhang.errors import WeightSyncFailed as WeightSyncFailed
    from unhang.inside.guards.agreement import assert_same as assert_same
    from unhang.inside.guards.agreement import together as together
    from unhang.inside.guards.align import align as align
    from unhang.inside.guards.ending import record as record
    from unhang.inside.guards.forecast import LoaderFinding as LoaderFinding
    from unhang.inside.guards.forecast import check_loader as check_loader
    from unhang.inside.guards.heartbeat import heartbeat as heartbeat
    from unhang.inside.guards.installing import install as install
    from unhang.inside.guards.learning import check_learning as check_learning
    from unhang.inside.guards.loader import watch_loader as watch_loader
    from unhang.inside.guards.process_group import process_group as process_group
    from unhang.inside.guards.replicas import check_replicas as check_replicas
    from unhang.inside.guards.section import section as section
    from unhang.inside.guards.section import sections as sections
    from unhang.inside.guards.weights import WeightSync as WeightSync

_PUBLIC = {
    "align": "unhang.inside.guards.align",
    "assert_same": "unhang.inside.guards.agreement",
    "check_learning": "unhang.inside.guards.learning",
    "check_loader": "unhang.inside.guards.forecast",
    "check_replicas": "unhang.inside.guards.replicas",
    "diagnose": "unhang.diagnosis",
    "GroupInUse": "unhang.errors",
    "heartbeat": "unhang.inside.guards.heartbeat",
    "install": "unhang.inside.guards.installing",
    "LoaderFinding": "unhang.inside.guards.forecast",
    "PeerFailed": "unhang.errors",
    "process_group": "unhang.inside.guards.process_group",
    "RanksDiffer": "unhang.errors",
    "record": "unhang.inside.guards.ending",
    "section": "unhang.inside.guards.section",
    "SectionOverran": "unhang.errors",
    "sections": "unhang.inside.guards.section",
    "together": "unhang.inside.guards.agreement",
    "watch_loader": "unhang.inside.guards.loader",
    "WeightSync": "unhang.inside.guards.weights",
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
