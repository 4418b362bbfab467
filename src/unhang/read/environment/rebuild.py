"""Rebuilds the lists of names from an installed torch and NCCL: `python -m unhang.read.environment.rebuild`.

Names come from the strings of the libraries, torch's headers and its Python sources; nothing is imported or run. Meanings,
types and ranges are written by hand in `meanings.json` and are left as they are.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
_NAME = rb"(?:TORCH|TORCHELASTIC|TORCHINDUCTOR|TORCHDYNAMO|TORCH_COMPILE|PYTORCH|GLOO)_[A-Z0-9_]{2,60}"
_IN_TORCH_LIBRARY = re.compile(rb"\0(" + _NAME + rb")(?=\0)")
_IN_HEADER = re.compile(rb'"(' + _NAME + rb')"')
_IN_PYTHON = re.compile(rb"[\"'](" + _NAME + rb")[\"']")  # also where a constant of another module holds the name
_IN_NCCL_LIBRARY = re.compile(rb"\0(NCCL_[A-Z0-9_]{2,60})(?=\0)")
_NCCL_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
_NOT_IN_EVERY_BUILD = ("TORCH_NCCL_", "TORCH_FR_", "GLOO_")
# Macros, enumerators and words of messages, which are strings in the libraries but no variables.
_NO_VARIABLE = re.compile(
    r"TORCH_(LIBRARY(_\w+)?|FUNCTION_MODE_STACK|CHECK\w*|INTERNAL_ASSERT|API|VERSION\w*)|PYTORCH_TEST\w*|TORCH_GLOO_LAZY_"
    r"|NCCL_(CTA_POLICY_\w+|GIN_TYPE_\w+|GIN_CONNECTION_\w+|NET_DEVICE_\w+|\w+_PLUGIN_REF_COUNT|NETDEVS_POLICY_\w+|SIGNAL_NONE)"
)


def names_in(data: bytes, pattern: re.Pattern[bytes]) -> set[str]:
    """The names of variables in the bytes of a file."""
    return {name for match in pattern.finditer(data) if not _NO_VARIABLE.fullmatch(name := match[1].decode())}


def _names(files: Iterable[Path], pattern: re.Pattern[bytes]) -> set[str]:
    found: set[str] = set()
    for file in files:
        found |= names_in(file.read_bytes(), pattern)
    return found


def torch_names(folder: Path) -> set[str]:
    """The variables that the torch in this folder reads."""
    return (
        _names(sorted((folder / "lib").glob("*.so*")), _IN_TORCH_LIBRARY)
        | _names(sorted((folder / "include/torch/csrc/distributed").rglob("*.h*")), _IN_HEADER)
        | _names(sorted(folder.rglob("*.py")), _IN_PYTHON)
    )


def write_table(path: Path, library: str, version: str, read_from: str, names: Iterable[str]) -> None:
    """Writes a list of names."""
    table = {"library": library, "version": version, "read_from": read_from, "names": sorted(set(names))}
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def kept_names(path: Path) -> set[str]:
    """The names of the list as it is now."""
    return set(json.loads(path.read_text(encoding="utf-8"))["names"]) if path.exists() else set()


def rebuild_torch(folder: Path, version: str, target: Path) -> str:
    """Rebuilds the list of torch. Returns what was done.

    A build without CUDA lacks the library that reads some TORCH_NCCL_ names: those of the list as it is now are kept.
    """
    names = torch_names(folder)
    has_cuda = any((folder / "lib").glob("libtorch_cuda*.so*"))
    kept = set() if has_cuda else {n for n in kept_names(target) if n.startswith(_NOT_IN_EVERY_BUILD)} - names
    build = "" if has_cuda else ", a build without CUDA"
    write_table(
        target, "torch", version, f"libraries, headers and Python sources of torch {version}{build}", names | kept
    )
    note = f", {len(kept)} that this build does not have kept from the list before" if kept else ""
    return f"torch {version}: {len(names)} names read{note}"


def rebuild_nccl(library: Path | None, target: Path) -> str:
    """Rebuilds the list of NCCL, or keeps it where there is no library. Returns what was done."""
    if library is None:
        return f"NCCL: no libnccl.so.2 found; {target.name} is kept as it is ({len(kept_names(target))} names)"
    data = library.read_bytes()
    version = match[1].decode() if (match := _NCCL_VERSION.search(data)) else "of unknown version"
    names = names_in(data, _IN_NCCL_LIBRARY)
    write_table(target, "NCCL", version, f"strings of libnccl.so.2 {version}", names)
    return f"NCCL {version}: {len(names)} names read"


def _folder_of(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)  # imports only the parents, which are empty here
    except ModuleNotFoundError:
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def main(arguments: Sequence[str] = ()) -> int:
    """Rebuilds both lists. Arguments: a folder of torch and a libnccl.so.2, where they are not the installed ones."""
    torch_folder = Path(arguments[0]) if arguments else _folder_of("torch")
    if torch_folder is None:
        print("torch: not installed; torch.json is kept as it is")
    else:
        version = metadata.version("torch") if not arguments else torch_folder.name
        print(rebuild_torch(torch_folder, version, HERE / "torch.json"))
    nccl_folder = _folder_of("nvidia.nccl")
    libraries = (
        [Path(arguments[1])]
        if len(arguments) > 1
        else sorted(nccl_folder.glob("lib/libnccl.so*"))
        if nccl_folder
        else []
    )
    print(rebuild_nccl(libraries[0] if libraries else None, HERE / "nccl.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
