"""What was seen of a job as a folder such as `unhang run` leaves, so that the same code judges it, here or elsewhere.

And such a folder, or a report, as one file to send to somebody: without secrets, and small enough to be sent.
"""

from __future__ import annotations

import io
import json
import os
import platform
import stat
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import unhang
from unhang.attach.looks import Looked
from unhang.attach.processes import Process, Processes, missing_right, ras_answer
from unhang.attach.ranks import FoundJob, Rank
from unhang.errors import CannotWrite, NotEvidence, UnreadableInput
from unhang.read.dumps.objects import load
from unhang.read.environment import redact_command, redact_text, stored_environment
from unhang.read.runs import REPORTS, has_bundle
from unhang.watch.evidence import fetch_calls_at
from unhang.watch.folders import BUNDLE, write_job_file, write_whole
from unhang.watch.process import py_spy
from unhang.watch.process_tree import line_of

_MOST_DUMP_BYTES, _MOST_LOG_BYTES = 256 << 20, 1 << 20
_PIPE, _SERVER = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_WORKER_SERVER_SOCKET"
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_RAS = "NCCL_RAS_ADDR"
_ANSWER_S, _SERVER_S, _RAS_S = 1.0, 0.5, 7.0  # RAS itself waits 5 s for a process that does not answer
# A watchdog dumps when it gives up; what is older may be of another stand of the job.
_NOT_LONG_NS = 30 * 60 * 1_000_000_000
_OUTPUTS = ("1", "2")
_LAST_CALLS = 8
_ONLY_PROC = "only /proc was read: states, waits, processor time"


def write_folder(folder: Path, job: FoundJob, looked: Sequence[Looked], processes: Processes) -> None:
    """Writes the folder of one job.

    Raises:
        OSError: it cannot be written.
    """
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    for seen in looked:
        own = _own(folder, seen.rank)
        own.mkdir(exist_ok=True)
        _write(own / "identity.json", _identity(seen.rank, processes))
        _write(own / "proc.json", seen.state)
        _write(own / "look.json", seen.look)
        if seen.threads:
            _write(own / "pyspy.json", seen.threads)
    write_job_file(folder, _facts(job, looked, processes))


def _write(path: Path, content: Any) -> None:
    write_whole(path, json.dumps(content).encode())


def _identity(rank: Rank, processes: Processes) -> dict[str, Any]:
    environment = rank.process.environment
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return {
        "rank": rank.number,
        "world_size": rank.size,
        "local_rank": rank.local,
        "local_world_size": rank.local_size,
        "pid": rank.process.pid,
        "host": platform.node(),
        "restart": int(restart) if restart.isdecimal() else 0,
        "started_ns": processes.started_ns(rank.process),
        "argv": redact_command(rank.process.command),
        "pids_inside": rank.process.pids_inside,
    }


def _facts(job: FoundJob, looked: Sequence[Looked], processes: Processes) -> dict[str, Any]:
    """job.json. Its start is that of its first rank."""
    starts = [s for r in job.ranks if (s := processes.started_ns(r.process))]
    first = job.ranks[0].process
    cwd = ""
    with suppress(OSError):
        cwd = os.readlink(first.folder / "cwd")
    return {
        "attached": True,
        "job_key": job.key,
        "command": redact_command(first.command),
        "cwd": cwd,
        "unhang_version": unhang.__version__,
        "started_ns": min(starts, default=0),
        "ended_ns": time.time_ns(),
        "environment": {k: v for k, v in stored_environment(first.environment).items() if not k.startswith(_OF_A_RANK)},
        "absent": [*_absent(job, looked)],
    }


_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _absent(job: FoundJob, looked: Sequence[Looked]) -> Iterator[dict[str, str]]:
    """What could not be had, and what gives it."""
    without = [s for s in looked if not s.threads and s.state.get("state") != "gone"]
    if without:
        ranks = ", ".join(str(s.rank.number) for s in without[:8])
        yield {"what": f"stacks of ranks {ranks}", "reason": why_no_stacks(without[0].rank.process)}
    for note in job.notes:
        yield {"what": "note", "reason": note}


def why_no_stacks(process: Process) -> str:
    """One line: what is missing, what gives it, and what is there without it."""
    if py_spy() is None:
        return f"py-spy is not installed (pip install 'unhang[stacks]'); {_ONLY_PROC}"
    otherwise = "py-spy could not read it: as root, or in a container with --cap-add SYS_PTRACE, it can"
    return f"{missing_right(process) or otherwise}; without it {_ONLY_PROC}"


# What the job has written itself


def take_calls(folder: Path, job: FoundJob, processes: Processes) -> None:
    """Flight-recorder dumps: of torch's own server, asked for by its pipe, or written not long ago. Those of all ranks, or none.

    Blocks: up to two seconds.
    """
    asked = {r.number: time.time_ns() for r in job.ranks if _ask(r)}
    deadline = time.monotonic() + (_ANSWER_S if asked else 0.0)
    left = list(job.ranks)
    while left and time.monotonic() <= deadline + _SERVER_S:
        left = [r for r in left if not _has_calls(folder, r, asked.get(r.number), processes)]
        if left and time.monotonic() >= deadline:
            break
        time.sleep(0.05 if left else 0.0)
    for rank in job.ranks if left else ():
        for name in ("flight.json", "flight.pickle"):
            _own(folder, rank).joinpath(name).unlink(missing_ok=True)


def _own(folder: Path, rank: Rank) -> Path:
    return folder / "ranks" / f"r{rank.number}-{rank.process.pid}"


def _ask(rank: Rank) -> bool:
    """Asks for a dump by the pipe that torch reads for it; never by a signal."""
    prefix = rank.process.environment.get(_PIPE)
    if not prefix:
        return False
    with suppress(OSError):
        path = f"{prefix}{rank.number}.pipe"
        if stat.S_ISFIFO(os.stat(path).st_mode):
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                return os.write(pipe, b"1\n") > 0
            finally:
                os.close(pipe)
    return False


def _has_calls(folder: Path, rank: Rank, asked_ns: int | None, processes: Processes) -> bool:
    """Copies the calls of a rank, where there are any. `asked_ns`: a dump that is older is not the answer."""
    own = _own(folder, rank)
    server = rank.process.environment.get(_SERVER)
    if server and (calls := fetch_calls_at(Path(server), _SERVER_S)) is not None:
        write_whole(own / "flight.json", calls)
        return True
    since = asked_ns or max(processes.started_ns(rank.process), time.time_ns() - _NOT_LONG_NS)
    for path in _dump_paths(rank):
        with suppress(OSError):
            status = path.stat()
            is_plain = stat.S_ISREG(status.st_mode) and 0 < status.st_size <= _MOST_DUMP_BYTES
            if is_plain and status.st_uid in (rank.process.uid, os.geteuid()) and since and status.st_mtime_ns >= since:
                dump = path.read_bytes()
                if asked_ns or is_written_by(rank.process, dump):
                    write_whole(own / "flight.pickle", dump)
                    return True
    return False


def is_written_by(process: Process, dump: bytes) -> bool:
    """Whether the threads that made the calls are threads of this process: all jobs on a machine dump to the same names by default.

    A thread's number is the address of its own data, which lies in the process's writable memory and hardly ever in another one's.
    torch before 2.7 keeps none; then nothing tells.
    """
    with suppress(UnreadableInput, ValueError, OSError):
        entries = load(dump).get("entries") or []
        threads = {int(e["thread_id"]) for e in entries[-_LAST_CALLS:] if str(e.get("thread_id", "")).isdecimal()}
        lines = (process.folder / "maps").read_text().splitlines()
        own = [_range(line) for line in lines if line.split()[1] == "rw-p"]
        return bool(threads) and all(any(a <= thread < b for a, b in own) for thread in threads)
    return False


def _range(line: str) -> tuple[int, int]:
    first, _, end = line.split()[0].partition("-")
    return int(first, 16), int(end, 16)


def _dump_paths(rank: Rank) -> Iterator[Path]:
    given = rank.process.environment
    prefixes = [given[name] for name in _DUMPS if given.get(name)]
    home = given.get("HOME", "")
    cache = given.get("XDG_CACHE_HOME") or f"{home}/.cache"
    prefixes = prefixes or [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]
    for prefix in prefixes:
        yield _seen_from_here(rank.process, f"{prefix}{rank.number}")


def _seen_from_here(process: Process, path: str) -> Path:
    """A path of the process, which may have another root and working folder than we."""
    if not path.startswith("/"):
        return process.folder / "cwd" / path
    return Path(path) if not process.pids_inside else process.folder / "root" / path[1:]


def ask_ras(job: FoundJob) -> bytes:
    """What NCCL's RAS tells of the job, see `ras_answer`; of one in a container nothing. Blocks: up to `_RAS_S`, where a rank does not answer."""
    ranks = [rank.process for rank in job.ranks if not rank.process.pids_inside]
    address = next((found for p in ranks if (found := p.environment.get(_RAS))), "")
    return ras_answer([p.pid for p in ranks], address, _RAS_S)


def keep_ras(folder: Path, answers: bytes) -> None:
    """Writes them beside the outputs, where they are read as the log that they are."""
    (folder / "outputs").mkdir(exist_ok=True)
    (folder / "outputs" / "ras.log").write_bytes(answers)


def take_outputs(folder: Path, job: FoundJob, processes: Processes) -> None:
    """The end of each file to which a rank or its launcher writes its output.

    Not of one that is appended to: what stands in it may be of an earlier run.
    """
    found: dict[tuple[int, int], tuple[Path, int | None]] = {}
    for pid, number in (*((r.process.pid, r.number) for r in job.ranks), *((p, None) for p in job.launchers)):
        for descriptor in _OUTPUTS:
            with suppress(OSError, KeyError, ValueError, StopIteration):
                process = processes.by_pid[pid].folder
                status = (process / "fd" / descriptor).stat()
                flags = int(line_of(process / "fdinfo" / descriptor, "flags:"), 8)
                if stat.S_ISREG(status.st_mode) and not flags & os.O_APPEND:
                    key = (status.st_dev, status.st_ino)
                    is_shared = key in found and found[key][1] != number
                    found[key] = (process / "fd" / descriptor, None if is_shared else number)
    for i, (path, number) in enumerate(found.values()):
        target = folder / "outputs" / (f"output_{i}.log" if number is None else f"rank_{number}_{i}.log")
        with suppress(OSError), path.open("rb") as file:
            target.parent.mkdir(exist_ok=True)
            file.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
            if content := file.read(_MOST_LOG_BYTES):
                target.write_bytes(content)


# As one file

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
