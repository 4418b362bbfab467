"""The guards inside Lightning, Hugging Face Trainer, Accelerate, DeepSpeed and Ray Train; scripts use `unhang.integrations`.

Nothing here is imported before the script asks for it, and no framework is imported that the script does not use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

REPLICAS_EVERY = "UNHANG_REPLICAS_EVERY"
_BOOTSTRAP = os.path.join(os.path.dirname(__file__), "bootstrap")


def with_replicas_compared(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job in which what DDP wraps is compared after every tenth optimizer step, or as often as it says itself."""
    path = os.pathsep.join(filter(None, (_BOOTSTRAP, environ.get("PYTHONPATH", ""))))
    return {**environ, "PYTHONPATH": path, REPLICAS_EVERY: environ.get(REPLICAS_EVERY, "10")}
