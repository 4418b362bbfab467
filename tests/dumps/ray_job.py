"""Decodes a folder of dumps on a Ray cluster of two nodes and in local processes; writes what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import ray
import slow_shards
from made_dumps import BOMBS, doubling_key
from ray.cluster_utils import Cluster

from unhang.errors import UnhangError
from unhang.read.dumps import DumpFile, Shard
from unhang.read.dumps.engine import LocalEngine, run_all
from unhang.read.dumps.engine_ray import RayEngine

RANKS = 40
LIMIT_S = float(sys.argv[2])  # for a shard of small files
NODE = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "node_ip_address": "127.0.0.1",
}


def decode_noting(files: Sequence[DumpFile], *, folder: str) -> Shard:
    """As `slow_shard`, and leaves in a file the process of its node: that of the Ray task is a child of it."""
    Path(folder, f"{files[0].rank}").write_text(str(psutil.Process(os.getppid()).ppid()))
    return slow_shards.slow_shard(files)


def lose_process(files: Sequence[DumpFile]) -> Shard:
    """Ends the process of the Ray task itself, as a lost node would."""
    os.kill(os.getppid(), 9)
    return Shard()


def compare(address: str, files: list[DumpFile], notes: str) -> dict[str, object]:
    """What both engines say."""
    progress: list[tuple[int, int]] = []
    with RayEngine(address, timeout_s=LIMIT_S, in_flight=2) as engine:
        task = partial(decode_noting, folder=notes)
        got = run_all(engine, task, files, lambda done, of: progress.append((done, of)))
        again = run_all(engine, slow_shards.slow_shard, files[:17][::-1])
        lost = run_all(engine, lose_process, files[:1])
        nodes = len({path.read_text() for path in Path(notes).iterdir()})
    connected = ray.is_initialized()
    local = run_all(LocalEngine(2, timeout_s=LIMIT_S), slow_shards.slow_shard, files)
    part = run_all(LocalEngine(2), slow_shards.slow_shard, files[:17])
    return {
        "same": slow_shards.same(got, local),
        "same_again": slow_shards.same(again, part),
        "rows": len(got.table),
        "absent": [a.what for a in got.absent],
        "writeable": bool(got.table["seq"].flags.writeable),
        "progress": progress,
        "lost": [[a.what, a.reason] for a in lost.absent],
        "nodes": nodes,
        "connected": connected,
    }


def unanswered(address: str, files: list[DumpFile]) -> str:
    """What the user reads where no node has what a task needs."""
    try:
        with RayEngine(address, resources={"unicorn": 1}, silence_s=2) as engine:
            run_all(engine, slow_shards.slow_shard, files)
    except UnhangError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Makes the dumps and the cluster, compares, and counts what is left of the cluster."""
    ray.cloudpickle.register_pickle_by_value(slow_shards)
    (folder / "dumps").mkdir()
    (folder / "notes").mkdir()
    files = slow_shards.write_dumps(folder / "dumps", RANKS)
    files[5] = slow_shards.spoil(files[5], Path(files[5].path).read_bytes()[:300])
    files[11] = slow_shards.spoil(files[11], BOMBS["text of 2 GiB"])
    files[17] = slow_shards.spoil(files[17], doubling_key())
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        cluster.add_node(**NODE)
        found = compare(cluster.address, files, str(folder / "notes"))
        found["unanswered"] = unanswered(cluster.address, files[:1])
    finally:
        started = psutil.Process().children(recursive=True)
        ray.shutdown()
        cluster.shutdown()
        alive = psutil.wait_procs(started, timeout=10)[1]
    (folder / "found.json").write_text(json.dumps({**found, "left": len(alive)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
