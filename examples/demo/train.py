"""A small training job that misbehaves: it trains for about two seconds, and then it hangs.

    torchrun --standalone --nproc-per-node=4 examples/demo/train.py

Four processes on the CPU teach a network to tell two interleaved spirals apart. Every process prints nothing wrong, none
fails, none uses the processor: without help one waits for the timeout of the process group, half an hour, and then reads
that some rank timed out in a broadcast. To see which rank started it, and at which line:

    unhang run -- torchrun --standalone --nproc-per-node=4 examples/demo/train.py

The mistake is a common one. Try to find it in `evaluation.py` before you ask.
"""

import time

import torch
import torch.distributed as dist
from evaluation import evaluate
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 3
BATCH_SIZE = 16
STEP_S = 0.05  # stands for the work of a larger model


def make_spirals(points: int, seed: int) -> TensorDataset:
    """Points on two interleaved spirals, with a little noise, and the spiral that each lies on."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(points) % 2
    turn = 4 * torch.rand(points, generator=generator).sqrt()
    angle = 2 * turn + labels * torch.pi
    spirals = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1)
    return TensorDataset(spirals + 0.05 * torch.randn(points, 2, generator=generator), labels)


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((2, 64), (64, 64)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 2))


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader, epoch: int) -> None:
    model.train()
    for step, (points, labels) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S)
        if dist.get_rank() == 0 and step % 8 == 0:
            print(f"epoch {epoch} step {step:3d}  loss {loss.item():.3f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, test_set = make_spirals(2048, seed=1), make_spirals(256, seed=2)
    sampler = DistributedSampler(train_set)
    train_batches = DataLoader(train_set, BATCH_SIZE, sampler=sampler)
    test_batches = DataLoader(test_set, BATCH_SIZE, sampler=DistributedSampler(test_set, shuffle=False))
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        train_epoch(model, optimizer, train_batches, epoch)
        evaluate(model.module, test_batches, epoch)
    del model, optimizer  # before the group that they refer to
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
