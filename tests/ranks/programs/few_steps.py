"""Trains, or does not, in the ways named by its arguments; each ends well. One rank, on the CPU."""

import sys

import torch
import torch.distributed as dist
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

BATCHES = 48


def evaluate(model):
    with torch.no_grad():
        for _ in range(BATCHES):
            model(torch.ones(4, 4))
    for _ in range(8):
        print("val_loss: nan")  # the set of this rank is empty


def step(model, optimizer, scaler, wrong=False, parts=1):
    optimizer.zero_grad()
    for _ in range(parts):
        loss = model(torch.ones(4, 4)).square().mean() / parts
        scaler.scale(loss * float("nan") if wrong else loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("step, loss", "nan" if wrong else f"{loss.item():.3f}")


def train(model, optimizer, ways):
    scaler = GradScaler("cpu", enabled="plain" not in ways)
    for number in range(6 if "accumulate" in ways else BATCHES):
        wrong = "never" in ways or ("once" in ways and number == 7) or ("then" in ways and number > 20)
        step(model, optimizer, scaler, wrong, 8 if "accumulate" in ways else 1)


def by_hand(model):
    """Without an optimizer of torch."""
    for _ in range(BATCHES):
        model(torch.ones(4, 4)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None


def main(*ways):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    if "evaluate" in ways:
        evaluate(model)
    if "by_hand" in ways:
        by_hand(model)
    if "train" in ways:
        train(model, torch.optim.Adam(model.parameters()), ways)
    dist.destroy_process_group()


main(*sys.argv[1:])
