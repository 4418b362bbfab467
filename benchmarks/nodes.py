"""One job on four nodes (network namespaces joined by a switch), two ranks each, gloo: what each fault is told as, and how soon.

Every node has an `unhang run --join node0` of its own. A fault comes while the job steps: a rank goes its own way, a node or a
watcher is killed, a link is down, slow or lossy. Printed per case: the verdict of the hub, seconds from the fault to it (to the
line on the screen where nothing is proven), how many reports, how the nodes ended. The switch is `tests/check/switch.py`, in user
space: delay and loss need nothing of the kernel.

    python benchmarks/nodes.py [CASE ...] [--repeat 20] [--json FILE] [--keep FOLDER]

`--repeat`: so many runs in all, one case after the other and from the beginning again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "nodes.py"
sys.path.insert(0, str(HERE.parent))

from tests import warm  # noqa: E402

NODES, PER_NODE = 4, 2
STALL_AFTER_S, ABORT_AFTER_S = 6, 10
START_LIMIT_S, END_LIMIT_S, HEALTHY_S, LIMIT_S = 240.0, 90.0, 8.0, 10.0
MARKS = {"user-exception": "# raises"}
TOKEN = "the token of a benchmark"
PORTS = cycle(range(29_700, 29_900))


def job(folder: Path) -> None:
    """A rank: steps until the file `end` is there; rank 5 takes another branch when `diverge` is there."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    (folder / f"stepping{rank}").touch()
    value, is_over = torch.ones(1), torch.zeros(1)
    if (folder / "raise").exists() and rank == 5 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        time.sleep(2)
        raise ValueError("a broken sample")
    while not is_over.item():
        time.sleep(0.1)
        if rank == 5 and (folder / "raise now").exists():
            (folder / "onset").write_text(str(time.time()))
            raise ValueError("a broken sample")  # raises
        if rank == 5 and (folder / "diverge").exists():
            (folder / "onset").write_text(str(time.time()))
            dist.barrier()  # culprit
        dist.all_reduce(value)
        is_over = torch.tensor([float((folder / "end").exists())])
        dist.all_reduce(is_over)
    dist.destroy_process_group()


def launch(node: int, folder: Path) -> int:
    """What a launcher does on one node: two ranks, and the end of both when one fails."""
    ranks = []
    for local in range(PER_NODE):
        place = {"RANK": node * PER_NODE + local, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": PER_NODE, "NODE_RANK": node}
        env = {**os.environ, **{name: str(value) for name, value in place.items()}, "WORLD_SIZE": str(NODES * PER_NODE)}
        ranks.append(subprocess.Popen([sys.executable, str(PROGRAM), "--job", str(folder)], env=env))
    while any(r.poll() is None for r in ranks):
        if any(r.poll() for r in ranks):
            for rank in ranks:
                rank.terminate()
        time.sleep(0.05)
    return max(abs(r.returncode) for r in ranks)


@dataclass
class Run:
    """One job on all nodes, and what to do with it."""

    cluster: Any
    folder: Path
    nodes: dict[int, warm.WarmJob] = field(default_factory=dict)
    fault_at: float = 0.0
    seen: dict[int, str] = field(default_factory=dict)

    def start(self, node: int, port: int, is_elastic: bool = False) -> None:
        """Starts the job's part on one node."""
        log = (self.folder / f"screen{node}").open("w")
        if is_elastic:
            rdzv = [
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                f"node0:{port}",
                "--rdzv-id",
                "1",
                "--max-restarts",
                "1",
            ]
            launcher = ["-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", str(PER_NODE), *rdzv]
            command = [sys.executable, *launcher, str(PROGRAM), "--job", str(self.folder)]
        else:
            command = [sys.executable, str(PROGRAM), "--launch", str(node), str(self.folder)]
        patience = 4 if is_elastic else 1  # launchers of busy nodes come to their meeting at quite different times
        limits = ["--stall-after", str(patience * STALL_AFTER_S), "--abort-after", str(patience * ABORT_AFTER_S)]
        limits += ["--join", "node0"]
        reports = ["--report-dir", str(self.folder / f"report{node}")]
        unhang = [str(Path(sys.executable).with_name("unhang")), "run", *limits, *reports, "--", *command]
        rendezvous = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0"}
        env = {**os.environ, "UNHANG_TOKEN": TOKEN, **rendezvous}
        self.nodes[node] = warm.start([*unhang], self.folder, log.fileno(), env, self.cluster.pids[node])
        log.close()

    def wait_until_it_steps(self, limit_s: float = START_LIMIT_S) -> None:
        """Until every rank has begun. Raises: TimeoutError."""
        until = time.monotonic() + limit_s
        while len(list(self.folder.glob("stepping*"))) < NODES * PER_NODE:
            if time.monotonic() > until:
                raise TimeoutError(f"the job does not start: {[self.screen(n)[-400:] for n in self.nodes]}")
            time.sleep(0.1)
        time.sleep(3)

    def screen(self, node: int) -> str:
        """What a node has shown so far."""
        return (self.folder / f"screen{node}").read_text(errors="replace")

    def watcher(self, node: int) -> int:
        """The watcher's process of a node."""
        return next(pid for pid in _tree(self.nodes[node].pid) if _comm(pid).startswith("unhang-watcher"))

    def end(self) -> list[int | None]:
        """Waits for the end of all nodes; the exit codes."""
        until = time.monotonic() + END_LIMIT_S
        while any(p.poll() is None for p in self.nodes.values()) and time.monotonic() < until:
            time.sleep(0.05)
        codes = [process.poll() for process in self.nodes.values()]
        for process in self.nodes.values():
            process.close()
        return codes


def _comm(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += _tree(int(child))
    return found


def _go_on(run: Run) -> None:
    time.sleep(HEALTHY_S)
    (run.folder / "end").touch()


def _diverge(run: Run) -> None:
    (run.folder / "diverge").touch()


def _raise(run: Run) -> None:
    (run.folder / "raise now").touch()


def _kill_node(node: int) -> Callable[[Run], None]:
    def kill(run: Run) -> None:
        watcher = run.watcher(node)
        them = [watcher, *(pid for pid in _tree(run.nodes[node].pid) if pid != watcher)]
        for pid, number in [(pid, number) for number in (signal.SIGSTOP, signal.SIGKILL) for pid in them]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    return kill


def _cut(run: Run) -> None:
    for other in range(3):
        run.cluster.fault(3, other, drop=1.0)


def _kill_watcher(node: int, then: Callable[[Run], None]) -> Callable[[Run], None]:
    def kill(run: Run) -> None:
        os.kill(run.watcher(node), signal.SIGKILL)
        time.sleep(8)
        run.fault_at = time.time()
        then(run)

    return kill


def _slow(then: Callable[[Run], None], **fault: float) -> Callable[[Run], None]:
    def do(run: Run) -> None:
        for one in range(NODES):
            for other in range(one):
                run.cluster.fault(one, other, **fault)
        time.sleep(4)
        run.fault_at = time.time()
        then(run)

    return do


@dataclass(frozen=True)
class Case:
    """`cause` and `ranks`: what the first finding is to say; "" and (): nobody is to be accused. `told`: what a screen must say."""

    name: str
    do: Callable[[Run], None]
    outcome: str
    cause: str = ""
    ranks: tuple[int, ...] = ()
    told: str = ""
    is_elastic: bool = False
    late: float = 0.0
    earlier: str = ""
    reports: int = 1  # 2: each side of a partition has one


UNSEEN = r"rank %d +its node node%d was not heard any more"
FOLLOWED = "another one goes on"
CASES = (
    Case("healthy", _go_on, "clean"),
    Case("divergence", _diverge, "hang", "code-divergence", (5,)),
    Case("exception", _raise, "crash hang", "user-exception", (5,)),
    Case("killed node", _kill_node(3), "crash hang", told=UNSEEN % (6, 3)),
    Case("killed first node", _kill_node(0), "crash hang", told=r"ranks? 0.* not seen from here"),
    Case(
        "partition",
        _cut,
        "hang",
        told=r"node node3 \(ranks 6, 7\) has not been heard for \d+ s: its machine is down",
        reports=2,
    ),
    Case("delay 100 ms, healthy", _slow(_go_on, delay_ms=100.0), "clean"),
    Case("delay 100 ms, divergence", _slow(_diverge, delay_ms=100.0), "hang", "code-divergence", (5,)),
    Case("loss 3 %, healthy", _slow(_go_on, drop=0.03), "clean"),
    Case("loss 3 %, divergence", _slow(_diverge, drop=0.03), "hang", "code-divergence", (5,)),
    Case("killed hub, healthy", _kill_watcher(0, _go_on), "clean", told=FOLLOWED),
    Case("killed hub, divergence", _kill_watcher(0, _diverge), "hang", "code-divergence", (5,), FOLLOWED),
    Case("killed watcher, healthy", _kill_watcher(3, _go_on), "clean", told=FOLLOWED),
    Case("killed watcher, divergence", _kill_watcher(2, _diverge), "hang", "code-divergence", (5,), FOLLOWED),
    Case("late node, healthy", _go_on, "clean", late=8.0),
    Case("restart, healthy", _go_on, "clean", is_elastic=True, earlier="user-exception"),
)


def measure(case: Case, cluster: Any, kept: Path | None) -> dict[str, Any]:
    """Runs one case; what came of it. `kept`: where what a run left stays that was not right."""
    with tempfile.TemporaryDirectory(prefix="unhang-nodes-") as folder:
        run = Run(cluster, Path(folder))
        if case.is_elastic:
            (run.folder / "raise").touch()
        port = next(PORTS)
        try:
            for node in range(NODES):
                if case.late and node == NODES - 1:
                    time.sleep(case.late)
                run.start(node, port, case.is_elastic)
            run.wait_until_it_steps()
            if case.is_elastic:
                time.sleep(20)  # the second attempt
            run.fault_at = time.time()
            case.do(run)
            told_s = _told_after(case, run)
            codes = run.end()
        except TimeoutError as error:
            print(error)
            told_s, codes = None, run.end()
        finally:
            cluster.fault()
            run.end()
        judged = _judged(case, run, codes, told_s)
        if kept is not None and not judged["right"]:
            shutil.copytree(folder, kept / f"{case.name.replace(' ', '-')}-{time.time():.0f}")
        return judged


def _told_after(case: Case, run: Run) -> float | None:
    """Seconds from the fault until the line is on a screen; None where none is wanted, or it does not come."""
    until = time.monotonic() + END_LIMIT_S
    while case.told and time.monotonic() < until:
        if any(re.search(case.told, run.screen(n)) for n in run.nodes):
            return time.time() - run.fault_at
        if all(p.poll() is not None for p in run.nodes.values()):
            return None
        time.sleep(0.1)
    return None


def _judged(case: Case, run: Run, codes: list[int | None], told_s: float | None) -> dict[str, Any]:
    reports = {
        n: json.loads((run.folder / f"report{n}" / "report.json").read_text())
        for n in run.nodes
        if (run.folder / f"report{n}" / "report.json").exists()
    }
    most = max(reports, key=lambda n: _weight(reports[n], run.folder / f"report{n}" / "bundle"), default=None)
    report = reports[most] if most is not None else {"outcome": "none", "findings": []}
    first = (report["findings"] or [{}])[0]
    onset = run.folder / "onset"
    began = float(onset.read_text()) if onset.exists() else run.fault_at
    verdicts = [run.folder / f"report{n}" / "bundle" / "verdict.json" for n in run.nodes]
    detected = [json.loads(v.read_text())["detected_ns"] / 1e9 - began for v in verdicts if v.exists()]
    accused = sorted({r for rep in reports.values() for f in rep["findings"] for r in f["culprit_ranks"]})
    line = first.get("location") or {}
    mark = MARKS.get(case.cause, "# culprit")
    wanted_line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith(mark))
    said = any(re.search(case.told, run.screen(n)) for n in run.nodes) if case.told else True
    is_right = (
        report["outcome"] in case.outcome.split()
        and accused == list(case.ranks)
        and said
        and (len(reports) == case.reports or report["outcome"] == "clean")
        and max([*detected, told_s or 0.0]) <= LIMIT_S
        and (not case.cause or (first.get("cause") == case.cause and line.get("line") == wanted_line))
        and (
            not case.earlier
            or [f["cause"] for a in report.get("earlier", []) for f in a["findings"]][:1] == [case.earlier]
        )
    )
    return {
        "case": case.name,
        "right": is_right,
        "outcome": report["outcome"],
        "first": first.get("title", ""),
        "accused": accused,
        "cause": first.get("cause", ""),
        "kind": (report.get("hang") or {}).get("kind", ""),
        "verdict_s": round(min(detected), 1) if detected else None,
        "told_s": round(told_s, 1) if told_s is not None else None,
        "reports": sorted(reports),
        "codes": codes,
        "screens": {n: run.screen(n)[-3000:] for n in run.nodes} if not is_right else {},
    }


def _weight(report: dict[str, Any], bundle: Path) -> tuple[bool, int]:
    """The report of a hub that judged comes first, then the one that has most ranks."""
    hung = report.get("hang") is not None and not (report["hang"].get("withdrawn") or report["outcome"] == "crash")
    return hung, len(list(bundle.glob("ranks/r*"))) + len(list(bundle.glob("nodes/*/ranks/r*")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="the folders of runs that were not right")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--job", type=Path)
    parser.add_argument("--launch", nargs=2)
    given = parser.parse_args()
    if given.job:
        return job(given.job)
    if given.launch:
        sys.exit(launch(int(given.launch[0]), Path(given.launch[1])))
    from tests.check.namespaces import WHY_NOT, Cluster

    if WHY_NOT:
        sys.exit(WHY_NOT)
    # For the restart: else the second attempt finds the addresses of the first. Torch reads it when it is imported.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    print(f"{socket.gethostname()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    found = []
    with Cluster(NODES) as cluster:
        wanted = [case for case in CASES if not given.cases or case.name in given.cases]
        for case in islice(cycle(wanted), given.repeat or len(wanted)):
            found.append(one := measure(case, cluster, given.keep))
            times = f"verdict {one['verdict_s']} s, line {one['told_s']} s"
            print(
                f"{'right' if one['right'] else 'WRONG':5}  {case.name:26} {one['outcome']:6} {one['kind']:9} {times:28}",
                end="",
            )
            print(f" reports {one['reports']}, exit codes {one['codes']}  {one['cause']} {one['first']}", flush=True)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1))
    print(f"{sum(one['right'] for one in found)} of {len(found)} right")
    return None


if __name__ == "__main__":
    main()
