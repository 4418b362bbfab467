"""One rank of a test that uses `run_ranks`: makes the group, calls the test's function, leaves its result or what it raised."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def work(folder: Path, rank: int) -> None:
    """Does all of it; what the function raised is raised again, so that the recorder sees it."""
    spec = json.loads((folder / "spec.json").read_bytes())
    try:
        result = _called(folder, spec)
        try:
            content = pickle.dumps(result)
        except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything
            raise TypeError(f"what it returned cannot be handed back: {type(error).__name__}: {error}") from None
        (folder / f"result-{rank}.pickle").write_bytes(content)
    except BaseException as error:
        at_ns = time.monotonic_ns()
        lines = traceback.format_exception(type(error), error, _of_the_user(error))
        fields = {"rank": rank, "at_ns": at_ns, "error": _in_short(error), "traceback": "".join(lines)}
        unfinished = folder / f".error-{rank}"
        unfinished.write_text(json.dumps(fields), encoding="utf-8")
        unfinished.replace(folder / f"error-{rank}.json")
        raise


def _called(folder: Path, spec: dict[str, Any]) -> Any:
    sys.path[:] = [*spec["path"], *(p for p in sys.path if p not in spec["path"])]
    if spec["module"] is not None:
        _import(spec["module"]["name"], spec["module"]["file"])
    fn, args = pickle.loads((folder / "call.pickle").read_bytes())
    if spec["backend"] is None:
        return fn(*args)
    import torch.distributed as dist

    dist.init_process_group(spec["backend"])
    result = fn(*args)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def _import(name: str, file: str) -> None:
    """Makes the test's module known by its name, also where pytest imported it by its path alone."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    try:
        found = import_module(name)
        if os.path.realpath(getattr(found, "__file__", None) or "") == os.path.realpath(file):
            return
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _of_the_user(error: BaseException) -> Any:
    """The traceback without our own frames at its beginning."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename == __file__ and at.tb_next is not None:
        at = at.tb_next
    return at


def _in_short(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
