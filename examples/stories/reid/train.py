"""Person re-identification on four ranks: a network with BatchNorm learns features that tell people apart.

    torchrun --standalone --nproc-per-node 4 train.py              trains in about ten seconds
    torchrun --standalone --nproc-per-node 4 train.py --broken     the incident: the features of the last test are never gathered
    torchrun --standalone --nproc-per-node 4 train.py --fault NAME another fault, see FAULTS

In every step the ranks gather their features for a memory bank (one mean feature per person), and DDP sends rank 0's buffers
and adds up gradients. After an epoch all ranks extract features of the test images, gather them, and rank 0 ranks them and
keeps the best model in the run's folder. At the end the best model is loaded and tested once more.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

FAULTS = {
    "none": "the healthy program",
    "own_folder": "every rank names the run's folder by its own clock (what --broken selects)",
    "unused_mask": "a batch of rank 2 has no boxes, and its mask head gets no gradient",
    "swallowed": "rank 1 cannot use a batch; the handler returns a loss of zero, and the rank leaves out its backward pass",
    "nan_loss": "the loss of rank 1 is NaN, which is not greater than zero",
    "rank0_preview": "rank 0 draws a preview through DDP, alone",
}
PEOPLE, PERSONS, IMAGES, WIDTH, SIZE, FAULT_STEP = 24, 6, 3, 48, 16, 8
Step = dict[str, Tensor]


def gather(local: Tensor) -> Tensor:
    """The tensors of all ranks, one after the other."""
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)
    return torch.cat(parts)


class MemoryBank(torch.autograd.Function):
    """Compares features with the bank; the backward pass moves the bank towards the features of all ranks."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, people: Tensor, bank: Tensor) -> Tensor:
        ctx.bank = bank
        ctx.save_for_backward(gather(features.detach()), gather(people))
        return features @ bank.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        to_features = gradient @ ctx.bank
        for feature, person in zip(*ctx.saved_tensors, strict=True):
            ctx.bank[person] = F.normalize(0.8 * ctx.bank[person] + 0.2 * feature, dim=0)
        return to_features, None, None


class Network(nn.Module):
    """A backbone with a neck, a classifier, and a head that predicts where the person is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        )
        self.feature = nn.Linear(32 * (SIZE // 4) ** 2, WIDTH)
        self.neck, self.classifier = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, PEOPLE, bias=False)
        self.mask = nn.Conv2d(32, 1, 1)

    def forward(self, images: Tensor, has_boxes: bool = True) -> Tensor | Step:
        hidden = self.body(images)
        features = self.neck(self.feature(hidden.flatten(1)))
        if not self.training:
            return F.normalize(features, dim=1)
        step = {"features": F.normalize(features, dim=1), "scores": self.classifier(features)}
        if has_boxes:  # <- unused_mask
            step["mask"] = self.mask(hidden)
        return step


def triplet_loss(features: Tensor, people: Tensor) -> Tensor:
    """The farthest image of the same person shall be nearer than the nearest image of another one."""
    distances, is_same = torch.cdist(features, features), people[:, None] == people[None]
    farthest = distances.masked_fill(~is_same, 0).amax(dim=1)
    nearest = distances.masked_fill(is_same, 9).amin(dim=1)
    return F.relu(farthest - nearest + 0.3).mean()


def run_folder(fault: str, root: Path) -> Path:
    """A new folder for this run, the same on all ranks."""
    stamp = [f"run-{time.time_ns()}"]
    if fault != "own_folder":
        dist.broadcast_object_list(stamp, src=0)  # the fix: one clock for all
    (root / stamp[0]).mkdir(exist_ok=True)
    return root / stamp[0]


class Runner:
    def __init__(self, root: Path, args: argparse.Namespace) -> None:
        self.rank, self.world, self.args = dist.get_rank(), dist.get_world_size(), args
        torch.manual_seed(0)
        self.people = torch.randn(PEOPLE, 3, SIZE, SIZE)
        self.net = DistributedDataParallel(Network(), find_unused_parameters=args.find_unused)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 2e-3)
        self.bank = F.normalize(torch.randn(PEOPLE, WIDTH), dim=1)
        self.best, self.best_score = run_folder(args.fault, root) / "best.pt", 0.0
        torch.manual_seed(1 + self.rank)

    def sample(self) -> tuple[Tensor, Tensor]:
        """The sampler for triplets: some people, some images of each."""
        people = torch.randperm(PEOPLE)[:PERSONS].repeat_interleave(IMAGES)
        return self.people[people] + torch.randn(len(people), 3, SIZE, SIZE), people

    def loss(self, step: int) -> Tensor:
        images, people = self.sample()
        fault = self.args.fault if step == FAULT_STEP else "none"
        if fault == "swallowed" and self.rank == 1:
            raise ValueError("the image file is truncated")  # <- swallowed
        out = self.net(images, has_boxes=not (fault == "unused_mask" and self.rank == 2))  # <- unused_mask
        loss = F.cross_entropy(out["scores"], people) + triplet_loss(out["features"], people)
        loss = loss + F.cross_entropy(MemoryBank.apply(out["features"], people, self.bank) / 0.1, people)
        if "mask" in out:
            loss = loss + 0.05 * out["mask"].square().mean()
        return loss * float("nan") if fault == "nan_loss" and self.rank == 1 else loss

    def train(self, epoch: int) -> None:
        self.net.train()
        total = 0.0
        for step in range(self.args.steps):
            try:
                loss = self.loss(epoch * self.args.steps + step)  # <- swallowed
            except ValueError as error:
                if self.args.fault != "swallowed":
                    raise
                print(f"rank {self.rank}: error in step {step}: {error}; going on with a dummy loss", flush=True)
                loss = torch.zeros((), requires_grad=True)  # <- swallowed
            total += loss.item()
            if self.args.fault not in ("swallowed", "nan_loss") or loss > 0:  # <- nan_loss
                self.optimizer.zero_grad()
                loss.backward()  # <- nan_loss
                self.optimizer.step()
        if self.rank == 0:
            print(f"epoch {epoch} loss {total / self.args.steps:.3f}", flush=True)

    @torch.no_grad()
    def extract(self) -> tuple[Tensor, Tensor]:
        """Features of two images of every person, from all ranks."""
        self.net.eval()
        people = torch.arange(PEOPLE).repeat(2).chunk(self.world)[self.rank]
        features = self.net(self.people[people] + 0.8 * torch.randn(len(people), 3, SIZE, SIZE))
        return gather(features), gather(people)

    def validate(self, title: str) -> None:
        features, people = self.extract()
        if self.rank == 0:
            others = torch.cdist(features, features).fill_diagonal_(9).argmin(dim=1)
            score = (people[others] == people).float().mean().item()
            print(f"{title} rank-1 {score:.2f}", flush=True)
            if self.args.fault == "rank0_preview":
                self.net.train()
                self.net(self.people)  # <- rank0_preview
            if score > self.best_score:
                self.best_score = score
                torch.save(self.net.module.state_dict(), self.best)
        dist.barrier()

    def run(self) -> None:
        for epoch in range(self.args.epochs):
            self.train(epoch)
            self.validate(f"epoch {epoch}")
        if self.best.is_file():  # <- here
            self.net.module.load_state_dict(torch.load(self.best))
            dist.barrier()  # <- here
        self.validate("best model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what shall go wrong")
    parser.add_argument("--broken", dest="fault", action="store_const", const="own_folder", help="the incident")
    parser.add_argument(
        "--find-unused", action="store_true", help="DDP looks for parameters without gradient in each step"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="per epoch")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as own:
        root = [own]
        dist.broadcast_object_list(root, src=0)  # the disk that all ranks share
        Runner(Path(root[0]), args).run()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
