"""What every rank runs: a small training in which something goes wrong at step 5, on one rank. Reads GPU_EVIDENCE, a JSON object.

Its output names neither the fault nor the culprit. A file `marks/RANK` says that a rank has come to the place.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULT_STEP, STEPS = 5, 40
STEP_S = 0.05
SMALL, LARGE = 1 << 14, 1 << 20
FOR_EVER_S = 3600
_LET_ANYBODY_TRACE = (0x59616D61, -1)  # PR_SET_PTRACER, for py-spy under Yama
_DIE_WITH_PARENT = (1, signal.SIGKILL)  # PR_SET_PDEATHSIG: whoever started us may be killed
ODD = 1


class Training:
    """A rank of the job."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.timeout_s, self.folder = float(given["timeout_s"]), Path(given["folder"])
        self.is_cuda = given["device"] == "cuda"
        self.device = torch.device("cuda", 0) if self.is_cuda else torch.device("cpu")
        self.is_odd = self.rank == ODD
        if self.is_cuda:
            torch.cuda.set_device(self.device)
            os.environ.setdefault("NCCL_HOSTID", f"host{self.rank}")  # NCCL refuses two ranks on one device of a host
        dist.init_process_group(given["backend"], timeout=timedelta(seconds=self.timeout_s))
        self.gradients, self.activations = self.ones(SMALL), self.ones(LARGE)
        self.weights = torch.nn.Parameter(self.ones(SMALL))
        self.optimizer = torch.optim.SGD([self.weights], lr=1e-3)
        self.other_group = dist.new_group(timeout=timedelta(seconds=self.timeout_s))
        for group in (None, self.other_group):  # communicators are made here, not at the fault
            dist.all_reduce(self.ones(1), group=group)
        self.settle()

    def ones(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor on the device."""
        return torch.ones(count, dtype=dtype, device=self.device)

    def settle(self) -> None:
        """Waits for the device, as `loss.item()` does in each step."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def step(self, number: int) -> None:
        """A step of the training."""
        time.sleep(STEP_S)
        dist.all_reduce(self.gradients)
        self.gradients /= self.world
        self.weights.grad = self.gradients
        self.optimizer.step()
        loss = float(self.gradients[0])
        if self.rank == 0:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} step {number} loss {loss / number:.4f}", flush=True)

    def gather(self) -> None:
        """The all_gather of an evaluation."""
        dist.all_gather([torch.empty_like(self.activations) for _ in range(self.world)], self.activations)
        self.settle()

    def barrier(self) -> None:
        """As users write it."""
        dist.barrier(device_ids=[0]) if self.is_cuda else dist.barrier()
        self.settle()

    def mark(self) -> None:
        """Says that this rank is where it happens."""
        (self.folder / "marks" / str(self.rank)).touch()


def healthy(job: Training) -> None:
    """An evaluation of all ranks."""
    job.gather()


def healthy_slow_rank0(job: Training) -> None:
    """Work of rank 0 that the timeout allows."""
    if job.rank == 0:
        time.sleep(job.timeout_s * 0.4)
    job.barrier()


def missing_call(job: Training) -> None:
    """One rank leaves the evaluation out."""
    if not job.is_odd:
        job.gather()


def extra_call(job: Training) -> None:
    """One rank evaluates once more than the others."""
    job.gather()
    if job.is_odd:
        job.gather()


def other_order(job: Training) -> None:
    """Two calls of one group, on one rank the other way round."""
    calls: list[Callable[[], object]] = [job.gather, lambda: dist.all_reduce(job.gradients)]
    for call in reversed(calls) if job.is_odd else calls:
        call()
        job.settle()


def other_order_of_groups(job: Training) -> None:
    """Two groups, on one rank the other way round."""
    groups = [None, job.other_group]
    for group in reversed(groups) if job.is_odd else groups:
        dist.all_reduce(job.activations, group=group)
        job.settle()


def size_mismatch(job: Training) -> None:
    """One rank reduces more elements."""
    dist.all_reduce(job.ones(LARGE * (3 if job.is_odd else 1)))
    job.settle()


def dtype_mismatch(job: Training) -> None:
    """One rank reduces the same number of elements, of another type."""
    dist.all_reduce(job.ones(LARGE, torch.float64 if job.is_odd else torch.float32))
    job.settle()


def long_rank0_work(job: Training) -> None:
    """Rank 0 writes for longer than the others wait."""
    if job.rank == 0:
        save_checkpoint()
    job.barrier()


def save_checkpoint() -> None:
    """As slow as a file system may be."""
    time.sleep(FOR_EVER_S)


def gil_held(job: Training) -> None:
    """A call of C on one rank that keeps the GIL."""
    if job.is_odd:
        ctypes.PyDLL(None).sleep(FOR_EVER_S)


def stopped(job: Training) -> None:
    """One rank is stopped."""
    if job.is_odd:
        os.kill(os.getpid(), signal.SIGSTOP)


def killed(job: Training) -> None:
    """One rank is killed."""
    if job.is_odd:
        os.kill(os.getpid(), signal.SIGKILL)


def device_assert(job: Training) -> None:
    """An index out of bounds on the device."""
    if job.is_odd:
        index = torch.full((8,), LARGE * 4, device=job.device)
        job.gradients[:8] += job.activations[index]


def endless_kernel(job: Training) -> None:
    """A kernel on one rank that does not end."""
    if job.is_odd:
        torch.cuda._sleep(1 << 62)


def out_of_memory(job: Training) -> None:
    """One rank wants more memory than there is."""
    if job.is_odd:
        job.activations = torch.empty(1 << 44, device=job.device)


def exception(job: Training) -> None:
    """A batch on one rank is broken."""
    if job.is_odd:
        raise ValueError("expected 3 channels, got 1")


def early_exit(job: Training) -> None:
    """One rank has no data left and ends, without an error."""
    if job.is_odd:
        print("no batches left on this rank, done", flush=True)
        sys.stderr.flush()
        os._exit(0)


def subgroup_not_by_all(job: Training) -> None:
    """A group that one rank does not make, of which it is no member; the next group of all is then another one to it."""
    timeout = timedelta(seconds=job.timeout_s)
    if not job.is_odd:
        dist.new_group([r for r in range(job.world) if r != ODD], timeout=timeout)
    dist.all_reduce(job.activations, group=dist.new_group(timeout=timeout))
    job.settle()


class Model(torch.nn.Module):
    """Two layers and a head that a batch may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256), torch.nn.ReLU())
        self.out, self.head = torch.nn.Linear(256, 1), torch.nn.Linear(256, 1)

    def forward(self, batch: torch.Tensor, with_head: bool = True) -> torch.Tensor:
        """One number for each row."""
        found = self.body(batch)
        return self.out(found) + self.head(found) if with_head else self.out(found)


class Rows(Dataset[torch.Tensor]):
    """Batches, one of which may not come."""

    def __init__(self, stuck_at: int = -1) -> None:
        self.stuck_at = stuck_at

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.stuck_at:
            read_from_storage()
        return torch.full((256,), 1.0 + index)


def read_from_storage() -> None:
    """As slow as storage may be."""
    time.sleep(FOR_EVER_S)


def replicated(job: Training) -> DistributedDataParallel:
    """The model under DDP."""
    return DistributedDataParallel(Model().to(job.device), device_ids=[0] if job.is_cuda else None)


def ddp_uneven_batches(job: Training) -> None:
    """One rank has one batch fewer, and goes on to the evaluation."""
    model = replicated(job)
    for _ in range(3 if job.is_odd else 4):
        model(torch.ones(8, 256, device=job.device)).sum().backward()
        job.settle()
    job.gather()


def ddp_validation_on_rank0(job: Training) -> None:
    """Rank 0 validates with the wrapped model, whose buffers are broadcast in each forward."""
    model = replicated(job)
    if job.rank == 0:
        model.eval()
        with torch.no_grad():
            print(f"validation loss {float(model(torch.ones(8, 256, device=job.device)).sum()):.3f}", flush=True)
    job.gather()


def ddp_unused_on_one(job: Training) -> None:
    """A batch of one rank leaves the head out, whose gradients the others wait for."""
    model = replicated(job)
    for number in range(3):
        model(torch.ones(8, 256, device=job.device), with_head=not (job.is_odd and number == 1)).sum().backward()
        job.settle()


def fsdp_batch_left_out(job: Training) -> None:
    """One rank leaves a batch out in which it finds no valid sample."""
    from torch.distributed.fsdp import fully_shard

    model = Model().to(job.device)
    fully_shard(model)
    for number in range(3):
        batch = torch.full((8, 256), float("nan") if job.is_odd and number == 1 else 1.0, device=job.device)
        if not bool(torch.isfinite(batch).all()):
            continue
        model(batch).sum().backward()
        job.settle()


def swallowed_exception(job: Training) -> None:
    """One rank raises before its call, and goes on."""
    for number in range(3):
        try:
            if job.is_odd and number == 1:
                raise ValueError("broken sample")
            dist.all_reduce(job.activations)
        except ValueError as error:
            print(f"skipped a batch: {error}", flush=True)
        job.settle()
    job.gather()


def loader_stuck(job: Training) -> None:
    """A worker of one rank's loader never gives its batch."""
    for batch in DataLoader(Rows(40 if job.is_odd else -1), batch_size=8, num_workers=1):
        dist.all_reduce(batch.to(job.device))
        job.settle()


def queue_empty(job: Training) -> None:
    """One rank waits for an item that nobody puts."""
    items: queue.Queue[int] = queue.Queue()
    if not job.is_odd:
        items.put(1)
    items.get()
    dist.all_reduce(job.activations)
    job.settle()


def send_left_out(job: Training) -> None:
    """Rank 0 receives what one rank does not send."""
    if job.rank == 0:
        dist.recv(job.activations, src=ODD)
    elif job.is_odd and time.time() < 0:
        dist.send(job.activations, dst=0)
    job.settle()


def healthy_ddp(job: Training) -> None:
    """Epochs of DDP with a loader, gradients gathered over two batches, and rank 0 that validates and saves alone, unwrapped."""
    model = replicated(job)
    for _ in range(2):
        for number, batch in enumerate(DataLoader(Rows(), batch_size=8, num_workers=1)):
            with model.no_sync() if number % 2 else contextlib.nullcontext():
                model(batch.to(job.device)).sum().backward()
            job.settle()
        if job.rank == 0:
            with torch.no_grad():
                model.module.eval()(torch.ones(8, 256, device=job.device))
            model.module.train()
            time.sleep(2)
        job.barrier()


def healthy_fsdp(job: Training) -> None:
    """Shards, and a checkpoint of all ranks that rank 0 writes for seconds."""
    from torch.distributed.fsdp import fully_shard

    model = Model().to(job.device)
    fully_shard(model)
    for _ in range(4):
        model(torch.ones(8, 256, device=job.device)).sum().backward()
        job.settle()
    for tensor in model.state_dict().values():
        tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    if job.rank == 0:
        time.sleep(job.timeout_s * 0.2 if job.timeout_s < 60 else 8)
    job.barrier()


PLACES: dict[str, Callable[[Training], None]] = {
    place.__name__.replace("_", "-"): place
    for place in (
        healthy, healthy_slow_rank0, missing_call, extra_call, other_order, other_order_of_groups, size_mismatch,
        dtype_mismatch, long_rank0_work, gil_held, stopped, killed, device_assert, endless_kernel, out_of_memory, exception,
        early_exit, subgroup_not_by_all, ddp_uneven_batches, ddp_validation_on_rank0, ddp_unused_on_one, fsdp_batch_left_out,
        swallowed_exception, loader_stuck, queue_empty, send_left_out, healthy_ddp, healthy_fsdp,
    )
}  # fmt: skip


def versions(is_cuda: bool) -> dict[str, object]:
    """What the job ran on."""
    found: dict[str, object] = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if is_cuda:
        driver = Path("/proc/driver/nvidia/version")
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        found["driver"] = driver.read_text().splitlines()[0] if driver.exists() else "?"
        found["device"] = torch.cuda.get_device_name(0)
    return found


def dump(is_nccl: bool) -> bytes:
    """The flight recorder of this process."""
    c10d = torch._C._distributed_c10d
    write: Any = getattr(c10d, "_dump_nccl_trace" if is_nccl else "_dump_fr_trace", None) or c10d._dump_nccl_trace
    found: bytes = write()
    return found


def dump_when_asked(folder: Path, rank: int, is_nccl: bool) -> None:
    """For who writes no dump of its own: gloo, and a healthy job."""
    while not (folder / "ask_dump").exists():
        time.sleep(0.05)
    unfinished = folder / "marks" / f"dump_{rank}"
    unfinished.write_bytes(dump(is_nccl))
    unfinished.rename(folder / "evidence" / "dumps" / f"nccl_trace_rank_{rank}")


def main() -> None:
    """Trains."""
    given = json.loads(os.environ["GPU_EVIDENCE"])
    for setting in (_LET_ANYBODY_TRACE, _DIE_WITH_PARENT):
        ctypes.CDLL(None).prctl(*setting)
    torch.set_num_threads(1)
    job = Training(given)
    is_nccl, is_healthy = given["backend"] == "nccl", given["place"].startswith("healthy")
    dumper = threading.Thread(target=dump_when_asked, args=(job.folder, job.rank, is_nccl), daemon=True)
    if is_healthy or not is_nccl:
        dump(is_nccl)  # the first one imports for seconds
        dist.barrier()
        dumper.start()
    if job.rank == 0:
        (job.folder / "versions.json").write_text(json.dumps(versions(job.is_cuda), indent=1))
    place = PLACES[given["place"]]
    if place is healthy_slow_rank0:  # what is taken of it shows the steps after the work
        place(job)
    for number in range(1, STEPS + 1):
        if number == FAULT_STEP:
            job.mark()
            if place is not healthy_slow_rank0:
                place(job)
        job.step(number)
    if job.rank == 0:
        print("training finished", flush=True)
    if (job.folder / "ask_dump").exists() and dumper.is_alive():
        dumper.join(job.timeout_s / 2)  # a thread that dumps while the interpreter ends may keep it
    job.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
