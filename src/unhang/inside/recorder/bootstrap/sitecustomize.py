"""First on the job's PYTHONPATH: start the recorder as soon as the program imports torch, and stay out of the way.

Every Python process below the job reads this file, so it imports nothing that the interpreter has not loaded already.
"""

import os
import sys

# Known to type checkers by its name; importing it from typing would cost each interpreter a millisecond.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_unhang_inside"


def _load_recorder() -> None:
    """Import the recorder from beside this file: unhang itself need not be importable in the user's environment."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(os.path.dirname(_HERE))
    if _PACKAGE not in sys.modules:  # the faults of `unhang inject` come from the same folder
        spec = spec_from_file_location(
            _PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            return
        package = module_from_spec(spec)
        sys.modules[_PACKAGE] = package
        spec.loader.exec_module(package)
    import_module(_PACKAGE + ".recorder.install").install()


class _TorchImport:
    """Finds nothing: it only notices that torch is about to be imported."""

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> None:
        if name != "torch":
            return
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        try:
            _load_recorder()
        except Exception:  # noqa: BLE001
            # A broken recorder must never become a broken training job.
            return


class _Import:
    """Notices that a module is about to be imported, and sees to it behind that: what it starts with a PYTHONPATH of its own shall be led here, too."""

    def __init__(self, name: str, lead: "Callable[[ModuleType], None]") -> None:
        self._name, self._lead = name, lead

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        if name != self._name:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        from importlib.util import find_spec

        spec = find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def load_and_lead(module: "ModuleType") -> None:
                load(module)
                self._lead(module)

            loader.exec_module = load_and_lead  # type: ignore[method-assign]
        return spec


def _lead_workers_here(ray: "ModuleType") -> None:
    from functools import wraps

    original = getattr(ray, "init", None)
    if original is None:
        return

    @wraps(original)
    def init(*args: object, **kwargs: object) -> object:
        given = kwargs.get("runtime_env")
        variables = given.get("env_vars") if isinstance(given, dict) else None
        path = variables.get("PYTHONPATH") if isinstance(variables, dict) else None
        if isinstance(given, dict) and isinstance(path, str) and _HERE not in path.split(os.pathsep):
            led = {**variables, "PYTHONPATH": os.pathsep.join((_HERE, path))}  # type: ignore[dict-item]
            kwargs["runtime_env"] = {**given, "env_vars": led}
        return original(*args, **kwargs)

    ray.init = init  # type: ignore[attr-defined]


def _lead_children_here(subprocess: "ModuleType") -> None:
    """A launcher of the job's own may give each node's processes a path of its own: `Popen(..., env=dict(os.environ, PYTHONPATH=libs))`."""
    from functools import wraps

    original = subprocess.Popen.__init__

    @wraps(original)
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        given = kwargs.get("env")
        env = os.environ if given is None else given
        if len(args) < _ENV and isinstance(env, (dict, os._Environ)) and env.get("UNHANG_RUN_DIR"):
            path = env.get("PYTHONPATH", "")
            if isinstance(path, str) and _HERE not in path.split(os.pathsep):
                kwargs["env"] = {**env, "PYTHONPATH": os.pathsep.join(filter(None, (_HERE, path)))}
        original(self, *args, **kwargs)

    subprocess.Popen.__init__ = __init__


_ENV = 11  # arguments before and with `env`


def _hand_over() -> None:
    """Import the sitecustomize that would have been found without us; what it raises is reported by `site`, as always.

    Without another one the ImportError for 'sitecustomize' rises to `site`, which ignores exactly this error.
    """
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


if __name__ == "sitecustomize":
    if os.environ.get("UNHANG_RUN_DIR"):
        sys.meta_path[:0] = [
            _TorchImport(),
            _Import("ray", _lead_workers_here),
            _Import("subprocess", _lead_children_here),
        ]
    _hand_over()
