"""The area `versions`: libraries, driver and training code of each rank. What must be equal on all is compared by the rules."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import util
from pathlib import Path

from unhang.check.areas import Context
from unhang.check.calls import TookTooLong, limited
from unhang.model import Reading, Unavailable

SCOPE = "rank"
LIMIT_S = 20.0
_LIBRARIES_LIMIT_S, _CODE_LIMIT_S = 8.0, 10.0
SETTINGS = ("CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_USE_COMM_NONBLOCKING")  # that make a version a bad one, or mend it
PACKAGES = "numpy triton deepspeed lightning pytorch-lightning transformers accelerate flash-attn"
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
DRIVER = Path("/proc/driver/nvidia/version")
_IN_TORCH = {"__version__": "torch", "cuda": "torch CUDA", "hip": "torch HIP", "git_version": "torch revision"}
_DRIVER = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_NUMBERED = re.compile(r"\.so\.(\d+\.\d+[\d.]*)$")
_NCCL, _PLUGIN, _CUDA = "libnccl.so.2", "libnccl-net.so", "libcuda.so.1"
_GIT_LIMIT_S, _FILES_LIMIT_S = 2.0, 2.0
_MOST_FILES, _MOST_BYTES, _SHOWN = 5000, 1 << 22, 12
_REVISION = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

Version = dict[str, str | None]


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """Versions of libraries and driver, then of the code; in children, as either may lie on a file system that is gone."""
    environ = dict(context.environ)
    try:
        found = limited(partial(versions, environ), _LIBRARIES_LIMIT_S)
    except (TookTooLong, OSError, RuntimeError) as error:
        yield Unavailable("versions.component", str(error))
    else:
        for name, version in found.items():
            yield Reading("versions.component", name, {"version": version})
    for name in SETTINGS:
        if name in environ:
            yield Reading("versions.setting", name, {"value": environ[name][:20]})
    yield _code(context.options.code)


def _code(named: Path | None) -> Reading | Unavailable:
    place = named or Path()
    try:
        found: Version | str = limited(partial(_code_version, place, named is not None), _CODE_LIMIT_S)
    except (TookTooLong, OSError, RuntimeError) as error:
        found = str(error)
    if isinstance(found, str):
        return Unavailable("versions.code", found)
    return Reading("versions.code", str(place.absolute()), found)


def _code_version(place: Path, is_named: bool) -> Version | str:
    try:
        return code_version(place, is_named)
    except NoVersion as error:
        return str(error)


def versions(environ: Mapping[str, str]) -> Version:
    """Component -> version; None where it is not there. Nothing is imported or started; a dead file system may hold it up."""
    found: Version = {
        "Python": platform.python_version(),
        "processor": platform.machine(),
        "kernel": platform.release(),
    }
    found |= {"C library": None, "NVIDIA driver": driver()}
    with suppress(AttributeError, ValueError, OSError):
        found["C library"] = os.confstr("CS_GNU_LIBC_VERSION")
    found |= torch_versions()
    found |= {name: installed(name) for name in PACKAGES.split()}
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


def torch_versions() -> Version:
    """Of torch and of what it was built for, from its version.py, which is read and not run."""
    found: Version = dict.fromkeys(_IN_TORCH.values())
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
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id in _IN_TORCH and node.value.value:
                found[_IN_TORCH[target.id]] = str(node.value.value)
    return found


def driver(file: Path = DRIVER) -> str | None:
    """The version of the kernel module of NVIDIA."""
    try:
        match = _DRIVER.search(file.read_text())
    except OSError:
        return None
    return match[1] if match else None


def nccl_files(environ: Mapping[str, str]) -> Version:
    """Libraries that variables put in the place of torch's own: NCCL, its network plugin, CUDA for an older driver."""
    folders = [Path(f) for f in environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    preloaded = [Path(p) for p in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")) if "libnccl." in p]
    plugin = environ.get("NCCL_NET_PLUGIN", "")
    library = plugin if ".so" in plugin else f"libnccl-net-{plugin}.so" if plugin else _PLUGIN

    def first(name: str, part: str = "") -> Path | None:
        return next((f / name for f in folders if part in str(f / name) and (f / name).exists()), None)

    return {
        "preloaded NCCL": _version_in_name(next(iter(preloaded), None)),
        "NCCL on LD_LIBRARY_PATH": _version_in_name(first(_NCCL)),
        "NCCL network plugin": None if plugin == "none" else _version_in_name(first(library)),
        "CUDA compatibility": _version_in_name(first(_CUDA, "compat")),
    }


def _version_in_name(file: Path | None) -> str | None:
    """The version in the name of the file that a link leads to; without one its name and size."""
    if file is None:
        return None
    try:
        real = file.resolve(strict=True)
        match = _NUMBERED.search(real.name)
        return match[1] if match else f"{real.name}, {real.stat().st_size} bytes"
    except OSError as error:
        return f"{file}: {error.strerror}"


class NoVersion(Exception):
    """The version of the code cannot be told, and why."""


def code_version(place: Path, is_named: bool) -> Version:
    """`how` it is known (git, revision, content), `revision`, and `changes`: a hash, empty for none, None where it is unknown.

    Args:
        place: a file or folder of the code.
        is_named: somebody named the place, so that its content counts where there is no git.

    Blocks: up to a few seconds; on a dead file system for ever.

    Raises:
        NoVersion: it cannot be told.
    """
    if not place.exists():
        raise NoVersion(f"{place} does not exist")
    folder = (place if place.is_dir() else place.parent).resolve()
    top = next((f for f in (folder, *folder.parents) if (f / ".git").exists()), None)
    if top is not None and (revision := head(top)) is not None:
        return {"how": "git", "revision": revision, "changes": changes(top)}
    if is_named:
        return {"how": "content", "revision": content(place), "changes": ""}
    raise NoVersion(f"{folder} is in no git repository; --code names the training code")


def head(top: Path) -> str | None:
    """The revision that is checked out, read by hand; None before the first commit, or where it cannot be read."""
    try:
        git = top / ".git"
        if git.is_file():  # a worktree or a submodule: a file that tells where it is
            git = (top / git.read_text().partition(":")[2].strip()).resolve()
        text = (git / "HEAD").read_text().strip()
        if not text.startswith("ref:"):
            return text if _REVISION.fullmatch(text) else None
        name = text.partition(":")[2].strip()
        common = (git / (git / "commondir").read_text().strip()).resolve() if (git / "commondir").exists() else git
        for folder in (git, common):
            if (folder / name).is_file():
                return (folder / name).read_text().strip()
        packed = common / "packed-refs"
        lines = packed.read_text().splitlines() if packed.exists() else []
        return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
    except OSError:
        return None


def changes(top: Path) -> str | None:
    """A hash of what differs from the revision, new Python files included; empty for nothing, None where git does not tell."""
    program = shutil.which("git")
    if program is None:
        return None
    try:
        changed = _git(program, top, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")
        new = _git(program, top, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
    except (OSError, subprocess.SubprocessError):
        return None
    files = [top / os.fsdecode(name) for name in sorted(new.split(b"\0")) if name]
    if not changed and not files:
        return ""
    found = hashlib.sha256(changed)
    for file in files[:_MOST_FILES]:
        found.update(str(file.relative_to(top)).encode(errors="replace") + b"\0" + _bytes(file))
    return found.hexdigest()[:_SHOWN]


def _git(program: str, top: Path, *arguments: str) -> bytes:
    """What git prints. It writes nothing, not even to its index, and asks nobody."""
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = [program, "-c", "core.fsmonitor=false", "-c", "core.quotepath=off", "-C", str(top), *arguments]
    nowhere = subprocess.DEVNULL
    return subprocess.check_output(command, stdin=nowhere, stderr=nowhere, timeout=_GIT_LIMIT_S, env=environ)


def content(place: Path) -> str:
    """A hash of a file, or of the Python files of a folder.

    Raises:
        NoVersion: they are too many.
    """
    deadline = time.monotonic() + _FILES_LIMIT_S
    files = [place] if place.is_file() else []
    for parent, folders, names in os.walk(place) if not files else ():
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("__pycache__", "site-packages"))
        files += [Path(parent, name) for name in sorted(names) if name.endswith(".py")]
        if len(files) > _MOST_FILES or time.monotonic() > deadline:
            raise NoVersion(f"{place} is in no git repository and has too many files to compare")
    if not files:
        raise NoVersion(f"{place} is in no git repository and has no Python file")
    found = hashlib.sha256()
    for file in files:
        name = file.name if file == place else str(file.relative_to(place))
        found.update(name.encode(errors="replace") + b"\0" + _bytes(file))
    return found.hexdigest()[:_SHOWN]


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as f:
            return f.read(_MOST_BYTES)
    except OSError as error:
        return f"unreadable: {error.strerror}".encode()
