"""Several nodes on this machine: processes with network, host name and /etc/hosts of their own, joined by a switch."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
_NEWNS, _NEWUTS, _NEWNET = 0x00020000, 0x04000000, 0x40000000
_PRIVATE, _BIND = 0x44000, 0x1000  # MS_REC | MS_PRIVATE, MS_BIND
_PR_SET_PDEATHSIG = 1
_LIMIT_S = 50.0

if os.geteuid() != 0:
    WHY_NOT = "network namespaces need root"
elif not all(map(shutil.which, ("ip", "nsenter"))):
    WHY_NOT = "the programs ip and nsenter are not here"
elif not os.path.exists("/dev/net/tun"):
    WHY_NOT = "there is no /dev/net/tun"
else:
    WHY_NOT = ""


class Cluster:
    """`size` nodes, node0 with 10.77.0.1 and so on. Use it as a context; nothing of it is left when its processes end.

    Each node is a process that has imported torch already and runs checks one after the other (`check`).
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="unhang-nodes-"))
        self.pids: list[int] = []
        self.turn = 0
        self._nodes: list[Any] = []
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        self.set_hosts()
        with socket.socket(socket.AF_UNIX) as meeting:
            meeting.settimeout(_LIMIT_S)
            meeting.bind(str(self.folder / "meeting"))
            meeting.listen(self.size)
            self._run([sys.executable, __file__, str(self.size), str(self.folder)])
            nodes: dict[int, Any] = {}
            while len(nodes) < self.size:
                connection, _ = meeting.accept()
                connection.settimeout(_LIMIT_S)
                node = connection.makefile("rw")
                hello = json.loads(node.readline())
                nodes[hello["index"]] = (hello["pid"], node)
                connection.close()
        self.pids = [nodes[i][0] for i in range(self.size)]
        self._nodes = [nodes[i][1] for i in range(self.size)]
        pids = map(str, self.pids)
        self.switch = self._run([sys.executable, str(HERE / "switch.py"), f"uh{os.getpid() % 10**6}-", *pids])
        self._expect_ok()

    def _run(self, command: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        self._started.append(process)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes; devices and namespaces end with them."""
        for node in self._nodes:
            node.close()
        for process in reversed(self._started):  # the switch before the nodes, whose devices end with them
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fault(self, *pair: int, **what: Any) -> None:
        """Sets a fault between two nodes (see `switch.Fault`); without arguments takes all back."""
        assert self.switch.stdin is not None
        self.switch.stdin.write(json.dumps({"pair": list(pair), **what} if pair else {}) + "\n")
        self.switch.stdin.flush()
        self._expect_ok()

    def _expect_ok(self) -> None:
        assert self.switch.stdout is not None
        assert self.switch.stdout.readline() == "ok\n"

    def set_hosts(self, wrong: Mapping[int, Mapping[str, str]] | None = None) -> None:
        """What /etc/hosts of each node says. `wrong`: node -> name -> address that is not the right one."""
        for index in range(self.size):
            names = {f"node{i}": f"10.77.0.{i + 1}" for i in range(self.size)} | dict((wrong or {}).get(index, {}))
            text = "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **names}.items())
            (self.folder / f"hosts{index}").write_text(text)

    def on(self, index: int, *command: str) -> list[str]:
        """A command line that runs on a node."""
        return ["nsenter", f"--target={self.pids[index]}", "--net", "--uts", "--mount", "--", *command]

    def call(self, index: int, *command: str) -> str:
        """Runs a command on a node to its end."""
        return subprocess.run(self.on(index, *command), check=True, capture_output=True, text=True, timeout=60).stdout

    def _ask(self, orders: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """Gives each node its order, and waits for all answers."""
        for i, order in orders.items():
            self._nodes[i].write(json.dumps(order) + "\n")
            self._nodes[i].flush()
        answers = {i: json.loads(self._nodes[i].readline()) for i in orders}
        assert not any("failed" in a for a in answers.values()), answers
        return answers

    def torchrun(self, *command: str) -> str:
        """Torchrun on all nodes at the same time, one rank each. What rank 0 wrote."""
        self.turn += 1
        launch = [f"--nnodes={self.size}", "--nproc-per-node=1", "--rdzv-backend=static", "--master-addr=10.77.0.1"]
        launch += [f"--master-port={29_600 + self.turn}", "--max-restarts=0"]
        self._ask({i: {"torchrun": [*launch, f"--node-rank={i}", *command]} for i in range(self.size)})
        return (self.folder / "torchrun0").read_text()

    def check(
        self,
        absent: Sequence[int] = (),
        environ: Mapping[int, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> dict[int, dict[str, Any]]:
        """One check on all nodes but the absent ones, as plain ranks of one job. Rank -> its report, of those that speak."""
        self.turn += 1
        orders = {}
        for i in range(self.size):
            variables = {
                "RANK": str(i),
                "WORLD_SIZE": str(self.size),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "node0",
                "MASTER_PORT": str(29_600 + self.turn),
                **(environ or {}).get(i, {}),
            }
            if i not in absent:
                orders[i] = {"environ": variables, "options": {"areas": ["network"], **options}}
        return {i: answer for i, answer in self._ask(orders).items() if "report" in answer}


def die_with_parent() -> None:
    """In a child: it must not outlive us, however we end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _node(index: int, folder: Path) -> None:
    """One node: its own namespaces, then checks on demand until the connection closes."""
    die_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    steps = [
        libc.unshare(_NEWNS | _NEWUTS | _NEWNET),
        libc.mount(None, b"/", None, _PRIVATE, None),
        libc.mount(str(folder / f"hosts{index}").encode(), b"/etc/hosts", None, _BIND, None),
        libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None),
    ]
    if any(steps):
        raise OSError(ctypes.get_errno(), f"no namespaces: {steps}")
    socket.sethostname(f"node{index}")
    platform._uname_cache = None  # type: ignore[attr-defined]  # it keeps the name that was read before the fork
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "meeting"))
        lines = connection.makefile("rw")
        lines.write(json.dumps({"index": index, "pid": os.getpid()}) + "\n")
        lines.flush()
        for line in lines:
            order = json.loads(line)
            answer = _launch(order["torchrun"], folder / f"torchrun{index}") if "torchrun" in order else _answer(order)
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    from unhang.check.areas import CheckOptions
    from unhang.check.checking import check
    from unhang.show.verdict import to_json

    try:
        checked = check(CheckOptions(**order["options"]), order["environ"], lambda text: None)
    except Exception:  # noqa: BLE001  whatever it is, the test shall show it
        return {"failed": traceback.format_exc()}
    if checked.diagnosis is None:
        return {"exit_code": checked.exit_code}
    readings = [[r.kind, r.subject, dict(r.fields), r.rank] for r in checked.case.readings]
    report = json.loads(to_json(checked.diagnosis))
    return {"report": report, "exit_code": checked.exit_code, "seconds": checked.seconds, "readings": readings}


def _launch(arguments: list[str], output: Path) -> dict[str, Any]:
    """Torchrun's own program in a fork, which has imported torch already."""
    child = os.fork()
    if child == 0:
        try:
            die_with_parent()
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
            from torch.distributed.run import main

            main(arguments)
        except BaseException:  # noqa: BLE001  a fork must never go on as its parent
            os._exit(1)
        os._exit(0)
    return {"exit_code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def _nodes(size: int, folder: Path) -> None:
    """Imports what takes long once, and forks the nodes from it."""
    import torch.distributed  # noqa: F401

    import unhang.check.checking  # noqa: F401

    children = []
    for index in range(size):
        child = os.fork()
        if child == 0:
            try:
                _node(index, folder)
            except BaseException:  # noqa: BLE001  a fork must never go on as its parent
                traceback.print_exc()
            os._exit(0)
        children.append(child)
    sys.stdin.read()
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _nodes(int(sys.argv[1]), Path(sys.argv[2]))
