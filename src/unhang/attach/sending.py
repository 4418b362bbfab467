"""Bundles on their way: one as a file for somebody, without secrets and small; those of a job's nodes, asked for and joined.

The nodes are asked by a command that the user names (ssh, srun, kubectl exec).
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from unhang.errors import CannotWrite, NotEvidence, UnreadableInput, WrongUsage
from unhang.read.dumps.unpack import unpack
from unhang.read.files import read_object
from unhang.read.redact import redact_text
from unhang.read.runs import REPORTS, has_bundle
from unhang.watch.folders import BUNDLE, write_job_file

MAX_FILES, MAX_FILE_BYTES, MAX_BYTES = 20_000, 64 << 20, 512 << 20
_TEXT = (".json", ".jsonl", ".txt", ".log", ".html")
_LEFT_OUT = (".lock", ".tmp", ".sock")


class Packed(NamedTuple):
    """What went into the file: names with sizes, and what was left out, with the reason."""

    files: list[tuple[str, int]]
    left_out: list[tuple[str, str]]


def pack(folder: Path, output: IO[bytes], name: str = "unhang-bundle") -> Packed:
    """Writes a report folder, or a bundle, as a tar.gz: plain files alone, and secrets in text replaced.

    Raises:
        NotEvidence: nothing of `unhang` is in the folder. OSError: the file cannot be written.
    """
    if not has_bundle(folder):
        raise NotEvidence(f"{folder}: there is no report and no bundle of unhang in it")
    with tarfile.open(fileobj=output, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        return _add(archive, folder, name)


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> Packed:
    packed, total = Packed([], []), 0
    for path in _files(folder):
        inner = str(path.relative_to(folder))
        if (why := _unwanted(path, total, len(packed.files))) is not None:
            packed.left_out.append((inner, why))
            continue
        data = _content(path)
        info = tarfile.TarInfo(f"{name}/{inner}")
        info.size, info.mtime, info.mode = len(data), int(path.stat().st_mtime), 0o644
        archive.addfile(info, io.BytesIO(data))
        packed.files.append((inner, len(data)))
        total += len(data)
    return packed


def pack_folders(folders: Sequence[Path], output: IO[bytes]) -> None:
    """Several bundles as one tar.gz, each below its own name."""
    with tarfile.open(fileobj=output, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for folder in folders:
            _add(archive, folder, folder.name)


def _files(folder: Path) -> Iterator[Path]:
    """Regular files: those of the bundle, of the other nodes beside it, and the reports; not what somebody else put there."""
    is_report = (folder / BUNDLE).is_dir()
    roots = [folder / BUNDLE, *sorted(folder.glob(f"*/{BUNDLE}"))] if is_report else [folder]
    if is_report:
        yield from (folder / name for name in REPORTS if (folder / name).is_file())
    for root in roots:
        for parent, folders, names in os.walk(root):
            folders.sort()
            for path in (Path(parent, name) for name in sorted(names)):
                if path.is_file() and not path.is_symlink() and not path.name.endswith(_LEFT_OUT):
                    yield path


def _unwanted(path: Path, total: int, count: int) -> str | None:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        return f"it is larger than {MAX_FILE_BYTES >> 20} MiB"
    if total + size > MAX_BYTES or count >= MAX_FILES:
        return f"the bundle would be larger than {MAX_BYTES >> 20} MiB or have more than {MAX_FILES} files"
    return None


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix in _TEXT or path.name.startswith("output"):
        return redact_text(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return data


def pack_to(folder: Path, target: Path) -> tuple[Packed, int]:
    """The same into a file, whole or not at all. Returns what is in it, and its size.

    Raises:
        NotEvidence: see `pack`. CannotWrite: the file cannot be written.
    """
    unfinished = target.with_name(f".{target.name}.tmp")
    try:
        with unfinished.open("wb") as file:
            packed = pack(folder, file)
        unfinished.replace(target)
        return packed, target.stat().st_size
    except OSError as error:
        raise CannotWrite(f"{target}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


NODE_LIMIT_S = 30.0
_HOST, _OURS = "{host}", "unhang: "
_MOST_AT_ONCE, _MOST_BYTES, _MOST_SAID = 32, 256 << 20, 200


@dataclass(frozen=True)
class Answer:
    """What a node sent. `jobs`: the folders of its jobs by their key. `why_not`: why there is nothing."""

    node: str
    jobs: Mapping[str, Path]
    why_not: str = ""


def command_for(via: str, node: str, remote: Sequence[str]) -> list[str]:
    """The command that runs `remote` on a node.

    Raises:
        WrongUsage: `via` cannot be read, or does not say where the node goes.
    """
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise WrongUsage(f"--via {via!r} cannot be read: {error}") from error
    if not any(_HOST in word for word in words):
        raise WrongUsage(f"--via {via!r} has no {{host}}: write it where the node's name goes, as in 'ssh {{host}}'")
    return [*(word.replace(_HOST, node) for word in words), *remote]


def parse_nodes(text: str) -> list[str]:
    """`a,b,c`.

    Raises:
        WrongUsage: there is none, or one that a command would take for an option.
    """
    nodes = [name for part in text.split(",") if (name := part.strip())]
    if not nodes or any(name.startswith("-") for name in nodes):
        raise WrongUsage(f"--nodes {text!r} names no nodes: write them as a,b,c")
    return list(dict.fromkeys(nodes))


def ask_nodes(via: str, nodes: Sequence[str], remote: Sequence[str], folder: Path, limit_s: float) -> list[Answer]:
    """Asks all nodes at the same time; what each sent is unpacked below `folder`.

    Blocks: `limit_s` for every 32 nodes. Raises: WrongUsage.
    """
    commands = [command_for(via, node, remote) for node in nodes]
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(lambda pair: _ask(pair[0], pair[1], folder, limit_s), zip(nodes, commands, strict=True)))


def _ask(node: str, command: Sequence[str], folder: Path, limit_s: float) -> Answer:
    place = Path(tempfile.mkdtemp(dir=folder))
    packed = place / "answer.tar.gz"
    try:
        with packed.open("wb") as out:
            code, said = _run(command, out.fileno(), limit_s)
    except OSError as error:
        return Answer(node, {}, f"{command[0]}: {error.strerror or error}")
    if code is None:
        return Answer(node, {}, f"it did not answer within {limit_s:.0f} s")
    if not packed.stat().st_size:
        return Answer(node, {}, said or f"it sent nothing (exit code {code})")
    if packed.stat().st_size > _MOST_BYTES:
        return Answer(node, {}, f"it sent more than {_MOST_BYTES >> 20} MiB")
    try:
        unpack(packed, place / "jobs")
    except (UnreadableInput, OSError):
        return Answer(
            node, {}, said or "what it sent is no bundle of unhang: does the command print something of its own?"
        )
    packed.unlink()
    return Answer(node, _jobs_in(place / "jobs"))


def _run(command: Sequence[str], out: int, limit_s: float) -> tuple[int | None, str]:
    """(exit code, None where the limit ended it; what it said, in one line)."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: what we started, and nothing else
            return None, ""
    lines = said.decode(errors="replace").strip().splitlines()
    own = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS)]
    return process.returncode, next(iter([*own, *lines[-1:]]), "")[:_MOST_SAID]


def _jobs_in(folder: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.glob("**/job.json")):
        with suppress(UnreadableInput):
            key = read_object(path).get("job_key")
            found[key if isinstance(key, str) else str(path)] = path.parent
    return found


def join(key: str, answers: Sequence[Answer], report_dir: Path) -> None:
    """Puts the folders of one job into a report folder, as one `unhang run` on each node would leave them.

    A node that did not answer is noted: of its ranks nothing is known, and nobody says that they are dead.
    """
    silent = [a for a in answers if a.why_not]
    here = [a for a in answers if key in a.jobs]
    for i, answer in enumerate(here):
        target = report_dir / BUNDLE if i == 0 else report_dir / _as_name(answer.node) / BUNDLE
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        shutil.move(answer.jobs[key], target)
    first = report_dir / BUNDLE
    job = json.loads((first / "job.json").read_bytes())
    noted = [{"what": f"node {a.node}", "reason": f"{a.why_not}; of its ranks nothing is known"} for a in silent]
    write_job_file(first, {**job, "absent": [*job.get("absent", []), *noted]})


def _as_name(node: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in node).lstrip(".") or "node"
