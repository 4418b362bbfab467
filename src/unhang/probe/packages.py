"""Versions of what a rank runs on, read from files: nothing is imported, and nothing is started."""

from __future__ import annotations

import ast
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import util
from pathlib import Path

PACKAGES = (
    "numpy",
    "triton",
    "deepspeed",
    "lightning",
    "pytorch-lightning",
    "transformers",
    "accelerate",
    "flash-attn",
)
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
DRIVER = Path("/proc/driver/nvidia/version")
_IN_TORCH = {"__version__": "torch", "cuda": "torch CUDA", "hip": "torch HIP", "git_version": "torch revision"}
_DRIVER = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_NUMBERED = re.compile(r"\.so\.(\d+\.\d+[\d.]*)$")
_NCCL, _PLUGIN, _CUDA = "libnccl.so.2", "libnccl-net.so", "libcuda.so.1"


def versions(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Component -> version; None where it is not there. Reads files, so a dead file system may hold it up."""
    found: dict[str, str | None] = {
        "Python": platform.python_version(),
        "processor": platform.machine(),
        "kernel": platform.release(),
        "C library": _c_library(),
        "NVIDIA driver": driver(),
    }
    found |= torch_versions()
    found |= {name: installed(name) for name in PACKAGES}
    found["NCCL"] = next((v for name in NCCL_PACKAGES if (v := installed(name))), None)
    found |= nccl_files(environ)
    return found


def installed(package: str) -> str | None:
    """The version of a package that this Python would import."""
    from importlib import metadata  # it brings the e-mail parser with it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_versions() -> dict[str, str | None]:
    """Of torch and of what it was built for, from its version.py, which is read and not run."""
    found: dict[str, str | None] = dict.fromkeys(_IN_TORCH.values())
    with suppress(OSError, ValueError, SyntaxError):
        spec = util.find_spec("torch")
        if spec and spec.origin:
            found |= parse_torch(Path(spec.origin).with_name("version.py").read_text())
    if found["torch"] is None:
        found["torch"] = installed("torch")
    return found


def parse_torch(text: str) -> dict[str, str]:
    """The texts that version.py of torch gives to its names."""
    found = {}
    for node in ast.parse(text).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if (
                isinstance(target, ast.Name)
                and target.id in _IN_TORCH
                and isinstance(value, ast.Constant)
                and value.value
            ):
                found[_IN_TORCH[target.id]] = str(value.value)
    return found


def _c_library() -> str | None:
    with suppress(AttributeError, ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION")
    return None


def driver(file: Path = DRIVER) -> str | None:
    """The version of the kernel module of NVIDIA."""
    try:
        match = _DRIVER.search(file.read_text())
    except OSError:
        return None
    return match[1] if match else None


def nccl_files(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Libraries that variables put in the place of torch's own: NCCL, its network plugin, CUDA for an older driver."""
    folders = [Path(f) for f in environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    preloaded = [Path(p) for p in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")) if "libnccl." in p]
    plugin = environ.get("NCCL_NET_PLUGIN", "")
    names = [plugin] if ".so" in plugin else [f"libnccl-net-{plugin}.so"] if plugin else [_PLUGIN]
    return {
        "preloaded NCCL": _told(next(iter(preloaded), None)),
        "NCCL on LD_LIBRARY_PATH": _told(_first(folders, [_NCCL])),
        "NCCL network plugin": None if plugin == "none" else _told(_first(folders, names)),
        "CUDA compatibility": _told(next((f for f in _all(folders, [_CUDA]) if "compat" in str(f)), None)),
    }


def _all(folders: list[Path], names: list[str]) -> Iterator[Path]:
    for folder in folders:
        yield from (folder / name for name in names if (folder / name).exists())


def _first(folders: list[Path], names: list[str]) -> Path | None:
    return next(_all(folders, names), None)


def _told(file: Path | None) -> str | None:
    """The version in the name of the file that a link leads to; without one its name and size."""
    if file is None:
        return None
    try:
        real = file.resolve(strict=True)
        match = _NUMBERED.search(real.name)
        return match[1] if match else f"{real.name}, {real.stat().st_size} bytes"
    except OSError as error:
        return f"{file}: {error.strerror}"


def as_numbers(version: str | None) -> tuple[int, ...]:
    """`2.7.0+cu126` as (2, 7, 0), to compare; empty where it is none."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(n) for n in match[1].split(".")) if match else ()
