"""One hub and many simulated watchers, eight ranks each: what the hub costs while the job runs, and how soon it tells a hang.

The hub is the real one, a process of its own: CPU and memory are its alone. The watchers are simulated, all in one other process, a
connection each; what they tell and send at a look was written by a real job of four ranks (`conditional_collective.py`: rank 0 makes
another call), with the numbers of ranks changed. The ranks of a node are a tensor-parallel group, those at one place of all nodes a data-parallel one, all of them the world.
All of them share this machine: with its two cores the senders take as much as the hub.

    python benchmarks/nodes_scale.py [--nodes 8 100 1000 12500] [--seconds 20] [--limit 120]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from unhang.analyze.alike import Told
from unhang.cli.run import _get_ready, _headline
from unhang.watch import RunOptions, hub_agent, many
from unhang.watch.exchange import VERSION, key_of, pack, parsed, seal
from unhang.watch.joined_agent import JoinedAgent
from unhang.watch.joining import Address, Join
from unhang.watch.meeting import GATHER_S, RELAY_PAUSE_S
from unhang.watch.messages import LEAST_PAUSE_S, Orders, Push, RankState, Row, State

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "tests" / "ranks" / "programs" / "conditional_collective.py"
RANKS, TOKEN, JOB, JOINS_PER_S = 8, "the token of a benchmark", "scale", 500
MOST_JOIN_S = 150.0
JOB_FILE = b'{"environment": {"SLURM_NNODES": "2"}}'
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
        found.append(files)
    return found[0], found[1]


def hub(port: int, run_dir: Path) -> None:
    """The hub's process: a watcher without ranks of its own."""
    out = os.open(run_dir / "said", os.O_WRONLY | os.O_CREAT)
    orders, _ = os.pipe()
    join = Join(Address("127.0.0.1", port), JOB, TOKEN)
    options = RunOptions(run_dir, on_hang="report", join=join, headline=_headline, get_ready=_get_ready)
    JoinedAgent(options, run_dir, os.getpid(), out, orders).run()


@dataclass
class Hub:
    """Where the hub is, and when the job comes to a stand. `lost`: connections."""

    address: tuple[str, int]
    key: bytes
    loop: asyncio.AbstractEventLoop
    hangs_at: float = math.inf
    is_over: bool = False
    lost: int = 0
    all_nodes: Sequence[Node] = ()


class Node(asyncio.Protocol):
    """One simulated watcher: what it says, when, and with what seal is a watcher's; it does not check the seal of the answer."""

    def __init__(
        self, number: int, nodes: int, templates: tuple[Template, Template], told: Sequence[Told] = ()
    ) -> None:
        self.number, self.nodes, self.templates, self._told = number, nodes, templates, told
        self.done, self.late_s, self.messages = State(world=nodes * RANKS), 0.0, 0
        self.verdict_at, self.line, self.name = 0.0, "", f"{number:032x}"
        self._folders = [f"r{r}-{1000 + i}" for i, r in enumerate(self.ranks)]
        self.members: dict[str, Node] = {}  # that speak through this one, and what is new of them
        self.news: dict[str, Push] = {}
        self.rows: dict[str, Row] = {}
        self.through: Node | None = None
        self._has_sent = False
        self._transport: Any = None

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return range(self.number * RANKS, (self.number + 1) * RANKS)

    def groups(self) -> list[tuple[str, str, range]]:
        """(name, description, ranks) of the groups of its ranks: the world, its own, and one for each place over all nodes."""
        world = range(self.nodes * RANKS)
        over = [(str(1 + i), "data", range(i, len(world), RANKS)) for i in range(RANKS)]
        return [("0", "default_pg", world), (str(1 + RANKS + self.number), "tensor", self.ranks), *over]

    def told(self) -> Told:
        """What it tells after a look: that of node 0, or of node 1, with which all others stand alike."""
        return self._told[self.number != 0]._replace(ranks=tuple(self.ranks))

    def really_told(self, run_dir: Path) -> Told:
        """What the watcher's own code makes of its files."""
        for name, data in self.files(range(self.nodes * RANKS)).items():
            (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (run_dir / name).write_bytes(data)
        told = many.told_of(run_dir)
        assert told is not None
        return told

    def files(self, only: Collection[int]) -> dict[str, bytes]:
        """What a look sends."""
        found = {}
        groups = [(name, desc, [r for r in ranks if r in only], len(ranks)) for name, desc, ranks in self.groups()]
        for local, rank in enumerate(self.ranks):
            template = self.templates[0 if rank == 0 else 1]
            fields = json.loads(template["identity.json"])
            fields |= {"rank": rank, "world_size": self.nodes * RANKS, "local_rank": local, "local_world_size": RANKS}
            fields |= {"pid": 1000 + local, "host": f"n{self.number}"}
            folder = f"ranks/r{rank}-{1000 + local}"
            found |= {f"{folder}/{name}": data for name, data in template.items()}
            found[f"{folder}/identity.json"] = json.dumps(fields).encode()
            lines = [
                {"pg_name": name, "pg_desc": desc, "ranks": kept, "left_out": size - len(kept)}
                for name, desc, kept, size in groups
                if rank in kept
            ]
            found[f"{folder}/groups.jsonl"] = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        return found

    def join(self, hub: Hub) -> None:
        """Connects, now or soon."""
        self._hub = hub
        if hub.is_over:
            return
        hub.loop.create_task(hub.loop.create_connection(lambda: self, *hub.address)).add_done_callback(self._failed)

    def _failed(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._hub.loop.call_later(random.uniform(0.5, 2), self.join, self._hub)

    def connection_made(self, transport: Any) -> None:
        """Asks who is there."""
        self._transport, self._nonce, self._buffer = transport, "", b""
        self.done = State(world=self.nodes * RANKS)
        self._files, self.through = {"job.json": JOB_FILE}, None
        self._timer: Any = None
        transport.write(b"GET /hello HTTP/1.1\r\n\r\n")

    def leave(self) -> None:
        """Hangs up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        """Comes again."""
        if not self.verdict_at and not self._hub.is_over and self.through is None:
            self._hub.lost += bool(self._nonce)
            self._hub.loop.call_later(random.uniform(0.5, 2), self.join, self._hub)

    def data_received(self, data: bytes) -> None:
        """Takes an answer."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or len(body) < int(parsed(head)[1]["content-length"]):
            return
        self._buffer = b""
        if not self._nonce:
            if b" 503 " in head[:20]:
                self._transport.close()  # busy
            else:
                self._nonce = json.loads(body)["nonce"]
                self._push(0.0)
            return
        is_waited_for = time.monotonic() - self._sent_at - self._wait_s
        self.late_s, self.messages = max(self.late_s, is_waited_for), self.messages + 1
        self._hear(_decode(body))

    def _said(self) -> Push:
        now = time.monotonic()
        quiet_s = max(0.1, now - self._hub.hangs_at)
        ranks = [RankState(folder, quiet_s, has_stepped=True) for folder in self._folders]
        files, self._files = self._files, {}
        state = msgspec.structs.replace(self.done, ranks=ranks, at=now)
        return Push(VERSION, f"n{self.number}", "127.0.0.1", 1 + self.number, state, files)

    def _push(self, wait_s: float) -> None:
        push, now = self._said(), time.monotonic()
        push.group, self.news = self.news, {}
        row = Row(now, self._quiet_s(now), self.done.looked, None, self.done.still, self.done.is_still)
        push.rows = {name: self.rows.get(name, row) for name in self.members if name not in push.group}
        self.rows = {}
        body = pack(_encode(push))
        number, digest = time.monotonic_ns(), hashlib.sha256(body).hexdigest()
        fields = {"Node": self.name, "Number": number, "Digest": digest, "Wait": round(wait_s, 3)}
        fields["Seal"] = seal(self._hub.key, self._nonce, self.name, number, digest, len(body))
        lines = [f"POST /v{VERSION}/push HTTP/1.1", f"Content-Length: {len(body)}"]
        lines += [f"X-Unhang-{name}: {value}" for name, value in fields.items()]
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self._sent_at, self._wait_s = time.monotonic(), wait_s

    def _quiet_s(self, now: float) -> float:
        """How long the ranks have been quiet, as a row has it: nothing where that was said before."""
        quiet_s = max(0.1, now - self._hub.hangs_at)
        return -1.0 if quiet_s > 2 * RELAY_PAUSE_S else quiet_s

    def _pass_on(self, through: Node) -> None:
        """Speaks through another node from now on. What is said between the two is not simulated: it costs the hub nothing."""
        self.through, self._files = through, {"job.json": JOB_FILE}
        self._transport.close()
        through.members[self.name] = self
        through.news[self.name] = self._said()
        through.hurry()

    def hurry(self) -> None:
        """Passes on what is new, soon, if it does not wait for an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._hub.loop.call_later(GATHER_S, self._push_if_open)

    def _hear(self, orders: Orders) -> None:
        """Does what was ordered, and says so."""
        if orders.via is not None:
            self._pass_on(self._hub.all_nodes[orders.via[1] - 1])
            return
        is_new = self._do(orders)
        for member in list(self.members.values()):
            asked = orders.group_send if member.name in orders.group else 0
            before = member.done
            if member._do(msgspec.structs.replace(orders, send=asked)):
                self._pass(member, before)
        pause_s = min(orders.pause_s, RELAY_PAUSE_S) if self.members else orders.pause_s
        if orders.verdict is not None:
            self._transport.close()
        elif self.members:
            self._timer = self._hub.loop.call_later(GATHER_S, self._push_or_wait, pause_s)
        elif is_new or pause_s > LEAST_PAUSE_S:
            self._push(0.0 if is_new else pause_s)
        else:
            self._hub.loop.call_later(pause_s, self._push_if_open)

    def _pass(self, member: Node, before: State) -> None:
        """What a member did, as a row where nothing else is new (`unhang.watch.many`)."""
        now, done = time.monotonic(), member.done
        if (before.hub, before.secured, before.sent) != (done.hub, done.secured, done.sent) or member.name in self.news:
            self.news[member.name] = member._said()
            return
        told = done.told if done.looked > before.looked else None
        self.rows[member.name] = Row(now, self._quiet_s(now), done.looked, told, done.still, done.is_still)

    def _push_or_wait(self, pause_s: float) -> None:
        self._timer = None
        if not self._transport.is_closing():
            self._push(pause_s)

    def _do(self, orders: Orders) -> bool:
        self.done = self.done if self.done.hub == orders.hub else State(orders.hub, world=self.nodes * RANKS)
        before = self.done
        if orders.look > before.looked:
            are_many = self.nodes * RANKS > hub_agent.MANY_RANKS
            told, self._files = (self.told(), {}) if are_many else (None, self.files(range(self.nodes * RANKS)))
            self._has_sent = not are_many  # of very many, only those whose files are read have more to secure
            self.done = msgspec.structs.replace(before, looked=orders.look, told=told)
        elif orders.send > before.sent:
            self._has_sent = True
            self.done, self._files = msgspec.structs.replace(before, sent=orders.send), self.files(set(orders.only))
        elif orders.confirm > before.still:
            self.done = msgspec.structs.replace(before, still=orders.confirm, is_still=True)
        elif orders.secure > before.secured and self._has_sent:
            self.done = msgspec.structs.replace(before, secured=orders.secure)
        if orders.verdict is not None:
            self.verdict_at = self.verdict_at or time.monotonic()
            self.line = f"{orders.verdict.kind}: {orders.verdict.line}"
        return self.done is not before

    def _push_if_open(self) -> None:
        self._timer = None
        if not self._transport.is_closing():
            self._push(0.0)


_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Orders).decode


def _used(pid: int) -> tuple[float, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") >> 20


async def measure(
    nodes: int, pid: int, port: int, them: tuple[Template, Template], folder: Path, seconds: float, limit_s: float
) -> str:
    """One size: a row of the table."""
    told = []
    for number in (0, 1):
        with tempfile.TemporaryDirectory(dir=folder) as run_dir:
            started = time.process_time()
            told.append(Node(number, nodes, them).really_told(Path(run_dir)))
            summary_s = time.process_time() - started
    all_nodes = [Node(i, nodes, them, told) for i in range(nodes)]
    hub = Hub(("127.0.0.1", port), key_of(TOKEN, JOB), asyncio.get_running_loop(), all_nodes=all_nodes)
    for i, node in enumerate(all_nodes):
        hub.loop.call_later(i / JOINS_PER_S, node.join, hub)
    until = time.monotonic() + MOST_JOIN_S
    while not all(n.messages or n.through for n in all_nodes) and time.monotonic() < until:
        await asyncio.sleep(1)
    await asyncio.sleep(3)
    hub.hangs_at = hangs_at = time.monotonic() + seconds
    met, cpu, _ = sum(n.messages > 0 or n.through is not None for n in all_nodes), *_used(pid)
    sent = sum(n.messages for n in all_nodes)
    for node in all_nodes:
        node.late_s = 0.0
    await asyncio.sleep(hangs_at - time.monotonic())
    healthy_cpu, healthy_mb = _used(pid)
    rate, late_s = (sum(n.messages for n in all_nodes) - sent) / seconds, max(n.late_s for n in all_nodes)
    until = time.monotonic() + limit_s
    while not all(n.verdict_at for n in all_nodes) and time.monotonic() < until:
        await asyncio.sleep(0.1)
    told = [n.verdict_at - hangs_at for n in all_nodes if n.verdict_at]
    hung_cpu, hung_mb = _used(pid)
    hub.is_over = True
    for node in all_nodes:
        node.leave()
    await asyncio.sleep(0.5)
    verdict = (
        f"first {min(told):5.1f} s, last {max(told):5.1f} s ({len(told)} nodes)" if told else f"none in {limit_s:g} s"
    )
    line = next((n.line for n in all_nodes if n.verdict_at), "")
    return (
        f"{nodes:6} nodes {nodes * RANKS:7} ranks, {met} joined | a node's own summary {summary_s * 1000:.0f} ms of CPU | "
        f"healthy: {rate:6.0f} messages/s, {(healthy_cpu - cpu) / seconds:5.1%} of a core, "
        f"{healthy_mb:5} MB, latest answer {late_s:5.2f} s | hang: {verdict}, {hung_cpu - healthy_cpu:5.1f} CPU s, {hung_mb:5} MB"
        f" | {line[:100]}{f' | {hub.lost} connections lost' if hub.lost else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 100, 1000, 12_500])
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
            (run_dir / "ranks").mkdir(parents=True)
            (run_dir / "job.json").write_text("{}")
            pid = os.fork()
            if pid == 0:
                try:
                    hub(port, run_dir)
                finally:
                    os._exit(0)
            try:
                print(
                    asyncio.run(measure(nodes, pid, port, them, Path(folder), given.seconds, given.limit)), flush=True
                )
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
