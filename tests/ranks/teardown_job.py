"""A small guarded training in which one rank ends in the way that is asked for; as a program, it is a rank or the parent of ranks.

    teardown_job.py torchrun|spawn|fork|ray FAULT FOLDER [PORT]

FOLDER gets the moment of the fault and the numbers of all processes. Ray takes all FAULTS,
each with a folder that has its port, and writes what became of each.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import unhang

RANKS = 2
FAULTY_STEP = 2


def train(how: str, folder: Path) -> None:
    with unhang.process_group("gloo", timeout="5m") as job:
        # Only one fault lies at the end; with the others the training would go on.
        samples = range(40 if how == "raises_at_end" else 1_000_000)
        batches = iter(DataLoader(samples, batch_size=4, num_workers=1))
        workers = [worker.pid for worker in batches._workers]  # type: ignore[attr-defined]
        (folder / f"pids-{job.rank}").write_text(" ".join(map(str, [os.getpid(), *workers])))
        dist.barrier()
        try:
            for step, batch in enumerate(batches):
                if step == FAULTY_STEP:
                    fault(how, job.rank, folder)
                dist.all_reduce(batch.float())
        finally:
            if how == "raises_at_end" and job.rank == 1:
                begin(folder)
                raise OSError("disk full")


def begin(folder: Path) -> None:
    (folder / "fault").write_text(str(time.time()))


def fault(how: str, rank: int, folder: Path) -> None:
    if how == "deaf":
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(100)
        time.sleep(0.5)
        begin(folder)
        raise ValueError("bad sample")
    if rank == 0 or how == "raises_at_end":
        return
    begin(folder)
    if how == "raises":
        raise ValueError("bad sample")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "leaves":
        sys.exit(0)


@unhang.record
def main(how: str, folder: Path) -> None:
    train(how, folder)


def be_rank(rank: int, how: str, folder: Path, port: int) -> None:
    """One of the ranks of `spawn` and of Ray, which tell it nothing of torch.distributed."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train(how, folder)


def in_ray(hows: list[str], folder: Path) -> None:
    """Two actors for each fault; nobody ends them until both have ended or failed by themselves."""
    import ray

    options: dict[str, Any] = {"num_cpus": RANKS, "include_dashboard": False, "object_store_memory": 100 << 20}
    ray.init(**options, _temp_dir=str(folder / "r"), log_to_driver=False)

    class Worker:
        def be_rank(self, *arguments: Any) -> None:
            be_rank(*arguments)

    for how in hows:
        of_fault = folder / how
        port = int((of_fault / "port").read_text())
        actors = [ray.remote(Worker).options(num_cpus=1).remote() for _ in range(RANKS)]
        calls = [actor.be_rank.remote(rank, how, of_fault, port) for rank, actor in enumerate(actors)]
        said = []
        for rank, call in enumerate(calls):
            try:
                ray.get(call, timeout=60)
                said.append(f"<{rank}> ended well")
            except Exception as error:  # noqa: BLE001
                said.append(f"<{rank}> {type(error).__name__}: {error}")
        (of_fault / "ended").write_text(str(time.time()))
        (of_fault / "said").write_text("\n".join(said))
        for actor in actors:
            ray.kill(actor)
    ray.shutdown()


if __name__ == "__main__":
    launcher, faults, where = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if launcher == "torchrun":
        main(faults, where)
    elif launcher in ("spawn", "fork"):
        given = (faults, where, int(sys.argv[4]))
        torch.multiprocessing.start_processes(be_rank, given, RANKS, start_method=launcher)  # type: ignore[no-untyped-call]
    else:
        in_ray(faults.split(","), where)
