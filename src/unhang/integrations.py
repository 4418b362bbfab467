"""The guards in a training whose loop belongs to a framework. See docs/integrations.md.

Each name brings its own framework when it is first used, and no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unhang.inside.integrations import Training as Training
    from unhang.inside.integrations import deepspeed_initialize as deepspeed_initialize
    from unhang.inside.integrations import ray_train_loop as ray_train_loop
    from unhang.inside.integrations import ray_training as ray_training
    from unhang.inside.integrations import watch_accelerator as watch_accelerator
    from unhang.inside.integrations.lightning import LightningCallback as LightningCallback
    from unhang.inside.integrations.transformers import TransformersCallback as TransformersCallback

_WHERE = {
    "deepspeed_initialize": "",
    "LightningCallback": ".lightning",
    "ray_train_loop": "",
    "ray_training": "",
    "Training": "",
    "TransformersCallback": ".transformers",
    "watch_accelerator": "",
}
__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'unhang.integrations' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"unhang.inside.integrations{_WHERE[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
