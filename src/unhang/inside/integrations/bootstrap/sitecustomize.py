"""On the PYTHONPATH of a job under `unhang verify --replicas`: compares the replicas of every model that DDP wraps, without a change to the script.

Every Python process below the job reads this file: nothing happens before the program imports torch.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_LIMIT_S = 30.0


class _TorchImport:
    """Finds nothing: it only notices that torch is about to be imported."""

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> None:
        if name != "torch":
            return
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        try:
            from unhang.inside.imports import act_after_import

            act_after_import({"torch.nn.parallel.distributed": _watch})
        except Exception:  # noqa: BLE001  the job's Python may have no unhang: then nothing is compared, which the report says
            return


def _watch(module: "Any") -> None:
    from functools import wraps

    original = module.DistributedDataParallel.__init__

    @wraps(original)
    def init(self: "Any", *args: "Any", **kwargs: "Any") -> None:
        original(self, *args, **kwargs)
        _compare(self)

    module.DistributedDataParallel.__init__ = init


def _compare(model: "Any") -> None:
    """Has a DDP module over all ranks be compared, from its making on. Nothing in it reaches the training."""
    import torch.distributed as dist

    from unhang.inside.guards.replicas import TAG, check_replicas
    from unhang.inside.guards.words import in_words, log

    try:
        if dist.get_world_size(model.process_group) == dist.get_world_size():
            every = max(1, int(os.environ.get("UNHANG_REPLICAS_EVERY", 10)))
            check_replicas(model, every=every, limit_s=_LIMIT_S)
            if dist.get_rank() == 0:
                log(TAG, f"comparing a model after every {every} optimizer steps")
        else:
            log(TAG, "not compared: a model that DDP wraps over some of the ranks")
    except Exception as error:  # noqa: BLE001
        log(TAG, f"not compared: {in_words(error)}")


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _TorchImport())
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")  # the one that would have been found without us, if there is one
