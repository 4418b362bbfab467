import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ckpt_paths import latest_checkpoint
from model_card import ModelCardCallback


@dataclass
class TrainState:
    epoch: int = 0
    step: int = 0
    last_loss: float = 0.0


def save(root, model, optimizer, state):
    path = os.path.join(root, f"epoch_{state.epoch}_step_{state.step}")
    dcp.save({"model": model.module.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="runs/base")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

    model = DistributedDataParallel(torch.nn.Linear(64, 8).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = TrainState()

    previous = latest_checkpoint(args.root)
    if previous is not None:
        payload = {"model": model.module.state_dict(), "optim": optimizer.state_dict()}
        dcp.load(payload, checkpoint_id=previous)
        model.module.load_state_dict(payload["model"])

    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 8, (4096,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    card = ModelCardCallback(args.root, owner=os.environ.get("USER", "nobody"))

    for state.epoch in range(args.epochs):
        sampler.set_epoch(state.epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.step += 1
        state.last_loss = loss.item()
        save(args.root, model, optimizer, state)
        card.on_epoch_end(state)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
