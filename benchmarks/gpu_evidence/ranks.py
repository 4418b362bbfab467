"""One job: its ranks are started, looked at while they hang, and ended, each by its pid. What they leave is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_evidence.faults import Fault

PROGRAM = Path(__file__).with_name("job.py")
POLL_S = 0.05
STACKS_LIMIT_S = 8.0
RAS_LIMIT_S = 6.0


@dataclass(frozen=True)
class How:
    """How jobs are run. `timeout_s`: of the process groups; `limit_s`: for one job; `settle_s`: from the fault to the stacks."""

    backend: str
    device: str
    ranks: int
    timeout_s: float
    limit_s: float
    settle_s: float

    @property
    def is_nccl(self) -> bool:
        """Whether the watchdog of NCCL writes the dumps."""
        return self.backend == "nccl"


@dataclass
class Job:
    """A job that runs."""

    fault: Fault
    folder: Path
    how: How
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def evidence(self) -> Path:
        """What `unhang diagnose` is given: nothing in it tells the truth."""
        return self.folder / "evidence"

    def is_alive(self, rank: int) -> bool:
        """Whether this rank has not ended."""
        return self.processes[rank].poll() is None


def free_port() -> int:
    """A port of loopback that nobody has at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(job: Job, rank: int, ports: tuple[int, int]) -> dict[str, str]:
    """Of one rank."""
    dumps = str(job.evidence / "dumps" / "nccl_trace_rank_")
    given = {
        "place": job.fault.name,
        "folder": str(job.folder),
        "backend": job.how.backend,
        "device": job.how.device,
        "timeout_s": job.how.timeout_s,
    }
    found = {
        "GPU_EVIDENCE": json.dumps(given),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(job.how.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",  # the names before torch 2.9
        "TORCH_FR_DUMP_TEMP_FILE": dumps,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps,
    }
    if job.how.is_nccl:
        found |= {
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60",
            "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "8000",  # the others write theirs in this time; 60 s are too long here
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": str(job.evidence / "nccl" / f"nccl_rank_{rank}.log"),
            **transport(ports[1]),
        }
    return found


def transport(ras_port: int | None = None) -> dict[str, str]:
    """NCCL over sockets of loopback, with few blocks on the device, so that the kernels of several ranks find room there.

    Several jobs share the host: RAS listens on `ras_port`, else on one that nobody has.
    """
    return {
        "NCCL_RAS_ADDR": f"localhost:{ras_port or free_port()}",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_MAX_CTAS": "2",
    }


def start(job: Job) -> int:
    """Starts all ranks. Returns the port of RAS."""
    for name in ("evidence/logs", "evidence/dumps", "evidence/nccl", "evidence/stacks", "marks"):
        (job.folder / name).mkdir(parents=True)
    ports = free_port(), free_port()
    for rank in range(job.how.ranks):
        with (job.evidence / "logs" / f"rank_{rank}.log").open("wb") as log:
            job.processes.append(
                subprocess.Popen(
                    [sys.executable, PROGRAM.name],
                    cwd=PROGRAM.parent,
                    env={**inherited(), **environment(job, rank, ports)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return ports[1]


def inherited() -> dict[str, str]:
    """The variables of ours but those that would change the job."""
    ours = (
        "NCCL_",
        "TORCH_",
        "GLOO_",
        "UNHANG_",
        "PYTHONDONTWRITEBYTECODE",
    )  # the last: each rank would compile what it imports
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def wait_until(happened: Callable[[], bool], limit_s: float) -> bool:
    """Whether it happened in time. Blocks: up to `limit_s`."""
    end = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def run(fault: Fault, folder: Path, how: How) -> dict[str, object]:
    """Runs one job and keeps what it leaves. Blocks: up to `how.limit_s`, and some seconds for the stacks.

    Returns:
        What became of it, as in `index.json`.
    """
    job = Job(fault, folder.resolve(), how)
    began = time.monotonic()
    try:
        ras_port = start(job)
        (job.folder / "truth.json").write_text(json.dumps(fault.truth(how.ranks), indent=1) + "\n")
        places = [job.folder / "marks" / str(rank) for rank in range(how.ranks)]
        wait_until(lambda: all(p.exists() for p in places) or not _any_alive(job), how.limit_s * 0.6)
        job.notes["reached"] = all(p.exists() for p in places)
        if job.notes["reached"] and _any_alive(job):
            look(job, ras_port)
        wait_until(lambda: is_over(job), max(0.0, how.limit_s - (time.monotonic() - began)))
        job.notes["over_by_itself"] = is_over(job)
    finally:
        end(job)
    codes = [process.returncode for process in job.processes]
    found = {
        "exit_codes": codes,
        "ended_by_us": job.notes.pop("ended_by_us", []),
        "happened": job.notes.pop("reached") and any(codes) != fault.is_healthy,
        "dumps": sorted(path.name for path in (job.evidence / "dumps").iterdir()),
        "stacks": sorted(path.name for path in (job.evidence / "stacks").iterdir()),
        "seconds": round(time.monotonic() - began, 1),
        **job.notes,
    }
    shutil.rmtree(job.folder / "marks")
    (job.folder / "ask_dump").unlink(missing_ok=True)
    (job.folder / "outcome.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def _any_alive(job: Job) -> bool:
    return any(job.is_alive(rank) for rank in range(job.how.ranks))


def is_over(job: Job) -> bool:
    """Whether all have ended whose end says something: who stands still for ever is not waited for."""
    waited_for = [rank for rank in range(job.how.ranks) if rank not in job.fault.culprits]
    return not any(job.is_alive(rank) for rank in waited_for)


def end(job: Job) -> None:
    """Ends what still runs. Nothing of a job outlives this."""
    if not job.fault.is_healthy and job.notes.get("over_by_itself"):
        wait_until(lambda: not _any_alive(job), 2.0)  # a culprit that timed out as well
    ended = [rank for rank in range(len(job.processes)) if job.is_alive(rank)]
    for rank in ended:
        job.processes[rank].send_signal(signal.SIGKILL)
    for process in job.processes:
        process.wait()
    job.notes["ended_by_us"] = ended


def look(job: Job, ras_port: int) -> None:
    """Takes the stacks of all ranks, the state of NCCL as RAS tells it, and dumps where nobody else writes them."""
    time.sleep(0.5 if job.fault.is_healthy else job.how.settle_s)
    if not job.how.is_nccl or job.fault.is_healthy:
        (job.folder / "ask_dump").touch()
    if job.how.is_nccl:
        ask_ras(job, ras_port)
    reasons = {rank: reason for rank in range(job.how.ranks) if (reason := stacks(job, rank))}
    if reasons:
        job.notes["no_stacks"] = reasons


def stacks(job: Job, rank: int) -> str:
    """Writes the stacks of a rank; why there are none, if so. Blocks: up to STACKS_LIMIT_S."""
    pyspy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if pyspy is None:
        return "py-spy is not installed"
    if not job.is_alive(rank):
        return "it has ended"
    pid = job.processes[rank].pid
    # A process that somebody has stopped must stay so.
    command = [pyspy, "dump", "--json", *(["--nonblocking"] if is_stopped(pid) else []), "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=STACKS_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"py-spy did not answer in {STACKS_LIMIT_S:g} s"
    if done.returncode:
        return done.stderr.decode("utf-8", "replace").strip()[-300:]
    (job.evidence / "stacks" / f"rank_{rank}_stacks.json").write_bytes(done.stdout)
    return ""


def is_stopped(pid: int) -> bool:
    """Whether a process stands still by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def ask_ras(job: Job, port: int) -> None:
    """Writes what RAS says: by its client, else over its socket, as any line-based client may. Blocks: up to RAS_LIMIT_S."""
    client = shutil.which("ncclras")
    try:
        if client:
            command = [client, "-v", "-h", "localhost", "-p", str(port)]
            text = subprocess.run(command, capture_output=True, timeout=RAS_LIMIT_S, check=False).stdout
        else:
            text = _ras_over_socket(port)
    except (OSError, subprocess.TimeoutExpired) as error:
        job.notes["no_ras"] = str(error)
        return
    if text:
        (job.evidence / "ras.txt").write_bytes(text)


def _ras_over_socket(port: int) -> bytes:
    text = b""
    with socket.create_connection(("localhost", port), timeout=RAS_LIMIT_S) as ras:
        ras.sendall(b"verbose status\n")
        ras.settimeout(RAS_LIMIT_S)
        try:
            while piece := ras.recv(1 << 16):
                text += piece
        except TimeoutError:
            pass  # what came until now
    return text
