"""On the PYTHONPATH of a job under `unhang verify --replicas`: what DDP wraps is compared, without a change to the script.

Every Python process below the job reads this file: nothing happens before the program imports torch.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchImport:
    """Finds nothing: it only notices that torch is about to be imported."""

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> None:
        if name != "torch":
            return
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        try:
            from unhang.inside.integrations.ddp_replicas import watch

            watch()
        except Exception:  # noqa: BLE001  the job's Python may have no unhang: then nothing is compared, which the report says
            return


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _TorchImport())
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")  # the one that would have been found without us, if there is one
