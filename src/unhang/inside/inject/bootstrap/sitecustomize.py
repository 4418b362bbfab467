"""On the job's PYTHONPATH: makes the faults ready as soon as the program imports torch.

The package is loaded from beside this file under a name of its own, with code that bears no path: what is the program's own in a
stack then is the program's line, as if the fault had been written there.
"""

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.path.dirname(_HERE)
_PACKAGE = "_unhang_inside"
_FAULTS = "_unhang_inside.inject"


class _Loader(SourceFileLoader):
    """Compiles a module anew, named after the module instead of its file."""

    def get_code(self, fullname: str) -> "CodeType":
        """The code of one module of the package."""
        code: CodeType = compile(self.get_data(self.path), f"<{fullname}>", "exec", dont_inherit=True)
        return code


class _Finder:
    """Finds the modules of the package; and notices that torch is about to be imported."""

    def __init__(self) -> None:
        self.has_started = False

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        """The spec of a module of ours; None for every other."""
        if name == "torch" and not self.has_started:
            self.has_started = True
            _start()
        if name == _PACKAGE:
            folder = os.path.dirname(_FOLDER)
            file = os.path.join(folder, "__init__.py")
            return spec_from_file_location(name, file, submodule_search_locations=[folder])
        if name != _FAULTS and not name.startswith(_FAULTS + "."):
            return None
        is_package = name == _FAULTS
        file = os.path.join(_FOLDER, "__init__.py" if is_package else f"{name.removeprefix(_FAULTS + '.')}.py")
        if not os.path.exists(file):
            return None
        folders = [_FOLDER] if is_package else None
        return spec_from_file_location(name, file, loader=_Loader(name, file), submodule_search_locations=folders)


def _start() -> None:
    from importlib import import_module

    try:
        import_module(_FAULTS).make_ready()
    except Exception as error:  # noqa: BLE001 - the job goes on without faults, and it is said that none happened
        print(f"[unhang] inject: nothing can be injected: {type(error).__name__}: {error}", file=sys.stderr)


def _hand_over() -> None:
    """Import the sitecustomize that would have been found without us; `site` ignores the ImportError if there is none."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


if __name__ == "sitecustomize":
    if os.environ.get("UNHANG_INJECT"):
        sys.meta_path.insert(0, _Finder())
    _hand_over()
