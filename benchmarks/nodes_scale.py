"""One hub and many simulated watchers, eight ranks each: what the hub costs while the job runs, and how soon it tells a hang.

The hub is the real one. A watcher is a connection of the real client in one other process; what it sends at a look was written by
a real job of four ranks (`conditional_collective.py`: rank 0 makes another call), with the numbers of ranks changed and without the
lists of members. All of them share this machine: with its two cores the senders take as much as the hub.

    python benchmarks/nodes_scale.py [--nodes 10 100 1000] [--seconds 20] [--limit 120]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from unhang.cli.run import _headline
from unhang.watch.exchange import VERSION, Client, key_of
from unhang.watch.joined_agent import JoinedAgent
from unhang.watch.joining import Address, Join
from unhang.watch.meeting import Orders, Push, RankState, State
from unhang.watch.options import RunOptions

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "tests" / "ranks" / "programs" / "conditional_collective.py"
RANKS, TOKEN, JOB = 8, "the token of a benchmark", "scale"
Template = dict[str, bytes]


def templates(folder: Path) -> tuple[Template, Template]:
    """The files of the rank that goes its own way, and those of another one, of a real job that hung."""
    unhang = [str(Path(sys.executable).with_name("unhang")), "run", "--report-dir", str(folder), "--"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(PROGRAM)]
    subprocess.run([*unhang, *launch], capture_output=True, timeout=300)
    found = []
    for rank in (0, 2):
        (source,) = (folder / "bundle" / "ranks").glob(f"r{rank}-*")
        files = {
            p.name: p.read_bytes()
            for p in source.iterdir()
            if p.is_file() and p.suffix != ".pickle" and p.stat().st_size
        }
        flight = json.loads(files["flight.json"])
        files["flight.json"] = json.dumps({**flight, "pg_config": {}}).encode()
        files["page.bin"] = files["page.bin"].rstrip(b"\0")
        del files["groups.jsonl"]
        found.append(files)
    return found[0], found[1]


def hub(port: int, run_dir: Path) -> None:
    """The hub's process: a watcher without ranks of its own."""
    out = os.open(run_dir / "said", os.O_WRONLY | os.O_CREAT)
    orders, _ = os.pipe()
    join = Join(Address("127.0.0.1", port), JOB, TOKEN)
    options = RunOptions(run_dir, on_hang="report", join=join, headline=_headline)
    JoinedAgent(options, run_dir, os.getpid(), out, orders).run()


class Node:
    """One simulated watcher."""

    def __init__(self, number: int, nodes: int, templates: tuple[Template, Template]) -> None:
        self.number, self.nodes, self.templates = number, nodes, templates
        self.done, self.worst_s, self.messages = State(), 0.0, 0
        self.verdict_at = 0.0

    def files(self) -> dict[str, bytes]:
        """What a look sends."""
        found = {}
        for local in range(RANKS):
            rank = self.number * RANKS + local
            template = self.templates[0 if rank == 0 else 1]
            fields = json.loads(template["identity.json"])
            fields |= {"rank": rank, "world_size": self.nodes * RANKS, "local_rank": local, "local_world_size": RANKS}
            folder = f"ranks/r{rank}-{1000 + local}"
            found |= {f"{folder}/{name}": data for name, data in template.items()}
            found[f"{folder}/identity.json"] = json.dumps(
                {**fields, "pid": 1000 + local, "host": f"n{self.number}"}
            ).encode()
        return found

    async def run(self, client: Client, hangs_at: float) -> None:
        """Speaks until the verdict comes."""
        await asyncio.sleep(self.number % 97 / 50)
        while True:
            try:
                await client.connect(20)
                break
            except OSError:
                await asyncio.sleep(1)
        orders, files = Orders(), {"job.json": b'{"environment": {"SLURM_NNODES": "2"}}'}
        while not self.verdict_at:
            quiet_s = max(0.1, time.monotonic() - hangs_at)
            ranks = [
                RankState(f"r{self.number * RANKS + i}-{1000 + i}", quiet_s, has_stepped=True) for i in range(RANKS)
            ]
            state = msgspec.structs.replace(self.done, ranks=ranks)
            started = time.monotonic()
            push = Push(VERSION, f"n{self.number}", "127.0.0.1", 1, state, files)
            orders = msgspec.msgpack.decode(await client.push(msgspec.msgpack.encode(push)), type=Orders)
            self.worst_s, self.messages, files = max(self.worst_s, time.monotonic() - started), self.messages + 1, {}
            self.done = self.done if self.done.hub == orders.hub else State(orders.hub)
            before = self.done
            if orders.look > before.looked:
                self.done, files = msgspec.structs.replace(before, looked=orders.look), self.files()
            elif orders.confirm > before.still:
                self.done = msgspec.structs.replace(before, still=orders.confirm, is_still=True)
            elif orders.secure > before.secured:
                self.done = msgspec.structs.replace(before, secured=orders.secure)
            if orders.verdict is not None:
                self.verdict_at = time.monotonic()
                self.line = f"{orders.verdict.kind}: {orders.verdict.line}"
            if self.done is before:
                await asyncio.sleep(orders.pause_s)


def _used(pid: int) -> tuple[float, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") >> 20


async def measure(
    nodes: int, pid: int, port: int, them: tuple[Template, Template], seconds: float, limit_s: float
) -> str:
    """One size: a row of the table."""
    hangs_at = time.monotonic() + 5 + seconds
    all_nodes = [Node(i, nodes, them) for i in range(nodes)]
    tasks = []
    for node in all_nodes:
        client = Client(Address("127.0.0.1", port), key_of(TOKEN, JOB), JOB, f"{node.number:032x}")
        tasks.append(asyncio.ensure_future(node.run(client, hangs_at)))
    await asyncio.sleep(5)
    cpu, _ = _used(pid)
    sent = sum(n.messages for n in all_nodes)
    for node in all_nodes:
        node.worst_s = 0.0
    await asyncio.sleep(hangs_at - time.monotonic())
    healthy_cpu, healthy_mb = _used(pid)
    rate, worst_s = (sum(n.messages for n in all_nodes) - sent) / seconds, max(n.worst_s for n in all_nodes)
    until = time.monotonic() + limit_s
    while not all(n.verdict_at for n in all_nodes) and time.monotonic() < until:
        await asyncio.sleep(0.1)
    told = [n.verdict_at - hangs_at for n in all_nodes if n.verdict_at]
    hung_cpu, hung_mb = _used(pid)
    failed = [t.exception() for t in tasks if t.done() and t.exception()]
    for task in tasks:
        task.cancel()
    verdict = (
        f"first {min(told):5.1f} s, last {max(told):5.1f} s ({len(told)} nodes)" if told else f"none in {limit_s:g} s"
    )
    line = next((n.line for n in all_nodes if n.verdict_at), "")
    return (
        f"{nodes:6} nodes {nodes * RANKS:7} ranks | healthy: {rate:6.0f} messages/s, {(healthy_cpu - cpu) / seconds:5.1%} of a core, "
        f"{healthy_mb:5} MB, slowest answer {worst_s:5.2f} s | hang: {verdict}, {hung_cpu - healthy_cpu:5.1f} CPU s, {hung_mb:5} MB"
        f" | {line[:100]}{f' | {len(failed)} failed: {failed[0]!r}' if failed else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--limit", type=float, default=120.0)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="unhang-scale-", dir="/dev/shm") as folder:
        them = templates(Path(folder) / "job")
        print(f"{socket.gethostname()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; a look sends", end=" ")
        print(f"{sum(map(len, them[1].values())) >> 10} KiB a rank", flush=True)
        for nodes in given.nodes:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            run_dir = Path(folder) / str(nodes)
            run_dir.mkdir()
            pid = os.fork()
            if pid == 0:
                try:
                    hub(port, run_dir)
                finally:
                    os._exit(0)
            try:
                print(asyncio.run(measure(nodes, pid, port, them, given.seconds, given.limit)), flush=True)
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
