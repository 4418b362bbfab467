"""A diffusion GAN on four ranks: two generators, each with a discriminator of its own, make a missing image from two others.

    torchrun --standalone --nproc-per-node 4 train.py              trains in about fifteen seconds
    torchrun --standalone --nproc-per-node 4 train.py --broken     the incident: rank 0 is late for its first batch, by minutes
    torchrun --standalone --nproc-per-node 4 train.py --fault NAME another fault, see FAULTS

Four networks, each a DDP module of its own, are trained by turns with one loss scale for each pair. Every rank has a loader
with a spawned worker, which gets the data set through a pipe: pickled, in the parent, before the first batch.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAULTS = {
    "none": "the healthy program",
    "pickled_data": "the whole data set is pickled into every worker, every epoch (what --broken selects)",
    "zero_scale": "an empty slice gives NaN in every batch: the loss scale falls to nothing, and no step is ever taken",
    "stuck_item": "the worker of rank 1 never returns its second batch",
    "skipped_backward": "rank 2 alone skips the backward pass of a loss that is not finite",
    "rank0_sample": "rank 0 draws a sample through DDP with its buffers, alone",
}
SIZE, IMAGES, BATCH, NOISE, LEVELS = 16, 192, 8, 4, 4


class Slices(Dataset[Tensor]):
    """Three modalities of each slice; the third is to be generated."""

    def __init__(self, path: Path, rank: int, fault: str) -> None:
        self.path, self.rank, self.fault = path, rank, fault
        self.images = np.load(path) if fault == "pickled_data" else None  # the fix: workers map the file

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> Tensor:
        if self.fault == "stuck_item" and self.rank == 1 and index >= IMAGES // 2:
            time.sleep(600)  # <- stuck_item
        images = np.load(self.path, mmap_mode="r") if self.images is None else self.images
        slices = torch.from_numpy(np.array(images[index]))
        return slices / (slices.std() + (0 if self.fault == "zero_scale" else 1e-3))

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled into every spawned worker: here a little; in the incident four modalities, from a busy disk."""
        if self.images is not None and self.rank == 0:
            time.sleep(600)  # <- here
        return self.__dict__


def make_images(path: Path, fault: str) -> None:
    """Rank 0 makes them: two smooth random images and their difference, in one file that all workers map."""
    rng = np.random.default_rng(7)
    coarse = rng.standard_normal((IMAGES, 2, SIZE // 4, SIZE // 4)).astype("float32")
    fine = coarse.repeat(4, axis=2).repeat(4, axis=3)
    images = np.concatenate([fine, fine[:, :1] - fine[:, 1:]], axis=1)
    if fault == "zero_scale":
        images[::2] = 0  # slices outside the head: all zero, and 0 / 0 is NaN
    np.save(path, images)


class Generator(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.level, self.noise = nn.Embedding(LEVELS, 24), nn.Linear(NOISE, 24)
        self.first, self.norm = nn.Conv2d(inputs, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.second, self.last = nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 1, 1)

    def forward(self, noisy: Tensor, given: Tensor, level: Tensor) -> Tensor:
        style = (self.level(level) + self.noise(torch.randn(len(noisy), NOISE)))[:, :, None, None]
        hidden = F.silu(self.norm(self.first(torch.cat([noisy, given], dim=1)) + style))
        return self.last(F.silu(self.second(hidden)))


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)
        self.last = nn.Linear(16 * (SIZE // 4) ** 2, 1)

    def forward(self, image: Tensor, noisy: Tensor) -> Tensor:
        return self.last(F.silu(self.second(F.silu(self.first(torch.cat([image, noisy], dim=1))))).flatten(1))


def add_noise(image: Tensor, level: Tensor) -> Tensor:
    share = ((level + 1) / LEVELS)[:, None, None, None]
    return (1 - share) * image + share * torch.randn_like(image)


class Training:
    """Generators, discriminators, their optimizers and loss scales."""

    def __init__(self, rank: int, fault: str) -> None:
        self.rank, self.fault, self.step = rank, fault, 0
        self.generators = nn.ModuleList(DistributedDataParallel(Generator(inputs)) for inputs in (3, 4))
        self.critics = nn.ModuleList(DistributedDataParallel(Discriminator()) for _ in range(2))
        self.for_generators = torch.optim.Adam(self.generators.parameters(), 3e-3)
        self.for_critics = torch.optim.Adam(self.critics.parameters(), 3e-4)
        self.scalers = [GradScaler("cpu"), GradScaler("cpu")]

    def fakes(self, noisy: Tensor, given: Tensor, level: Tensor) -> list[Tensor]:
        """The second generator refines what the first has made."""
        first = self.generators[0](noisy, given, level)
        return [first, self.generators[1](noisy, torch.cat([given, first], dim=1), level)]

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer, scaler: GradScaler) -> None:
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # <- skipped_backward
        scaler.step(optimizer)
        scaler.update()

    def run_step(self, batch: Tensor) -> float:
        """One step of both discriminators, one of both generators. Returns the distance from the true image."""
        given, image = batch[:, :2], batch[:, 2:]
        level = torch.randint(LEVELS, (len(batch),))
        noisy = add_noise(image, level)
        with torch.no_grad():
            fakes = self.fakes(noisy, given, level)
        loss = torch.zeros(())
        for critic, fake in zip(self.critics, fakes, strict=True):
            true, false = critic(torch.cat([image, fake]), torch.cat([noisy, noisy])).chunk(2)
            loss = loss + (F.softplus(-true) + F.softplus(false)).mean()
        if self.fault == "skipped_backward" and self.step == 3 and self.rank == 2:
            loss = loss * float("nan")
        if self.fault != "skipped_backward" or torch.isfinite(loss):  # <- skipped_backward
            self.update(loss, self.for_critics, self.scalers[0])  # <- skipped_backward
        self.critics.requires_grad_(False)
        fakes = self.fakes(noisy, given, level)
        distance = sum(F.l1_loss(fake, image) for fake in fakes)
        fooled = sum(F.softplus(-c.module(fake, noisy)).mean() for c, fake in zip(self.critics, fakes, strict=True))
        self.update(distance + 0.05 * fooled, self.for_generators, self.scalers[1])
        self.critics.requires_grad_(True)
        self.step += 1
        return distance.item()


def watch(training: Training) -> None:
    """Says, for each optimizer, whether it takes steps at all."""
    import unhang

    pairs = ((training.critics, training.for_critics), (training.generators, training.for_generators))
    for (modules, optimizer), scaler in zip(pairs, training.scalers, strict=True):
        unhang.check_learning(modules, optimizer, scaler, within=10)


def train(args: argparse.Namespace, rank: int, world: int, path: Path) -> None:
    torch.manual_seed(0)
    training, slices = Training(rank, args.fault), Slices(path, rank, args.fault)
    torch.manual_seed(1 + rank)
    sampler = DistributedSampler(slices, world, rank, shuffle=False)
    keep = args.fault != "pickled_data"  # the fix, for the later epochs: workers stay
    workers: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": keep}
    loader = DataLoader(slices, BATCH, sampler=sampler, **workers)
    if args.guard:
        watch(training)
    for epoch in range(args.epochs):
        started = time.monotonic()
        for number, batch in enumerate(loader):  # <- stuck_item
            if number == 0:
                print(f"rank {rank} epoch {epoch}: first batch after {time.monotonic() - started:.1f} s", flush=True)
            distance = training.run_step(batch)
        if rank == 0:
            scales = [scaler.get_scale() for scaler in training.scalers]
            print(f"epoch {epoch} loss {distance:.3f} loss scales {scales}", flush=True)
            if args.fault == "rank0_sample":
                training.fakes(batch[:, 2:], batch[:, :2], torch.zeros(len(batch), dtype=torch.long))  # <- rank0_sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what shall go wrong")
    parser.add_argument("--broken", dest="fault", action="store_const", const="pickled_data", help="the incident")
    parser.add_argument("--guard", action="store_true", help="with unhang.check_learning, which sees `zero_scale`")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        dist.broadcast_object_list(shared, src=0)
        path = Path(shared[0]) / "images.npy"
        if dist.get_rank() == 0:
            make_images(path, args.fault)
        dist.barrier()
        train(args, dist.get_rank(), dist.get_world_size(), path)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
