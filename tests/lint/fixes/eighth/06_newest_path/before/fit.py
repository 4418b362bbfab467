import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from callbacks import CheckpointCallback


def main(epochs=5, steps_per_epoch=200):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(nn.Linear(64, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = CheckpointCallback("/scratch/fit", every=50)
    step = callback.restore(model)
    for epoch in range(epochs):
        running = torch.zeros(1, device="cuda")
        for _ in range(steps_per_epoch):
            x = torch.randn(16, 64, device="cuda")
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            running += loss.detach()
            step += 1
            callback.on_step_end(model, epoch, step)
        dist.all_reduce(running)
        callback.on_epoch_end({"epoch": epoch, "loss": running.item() / steps_per_epoch})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
