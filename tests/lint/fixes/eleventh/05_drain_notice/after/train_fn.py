import os
import socket

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from drain_watch import DrainWatch
from reporter import Reporter


def train(steps=20000, every=2000):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    watch = DrainWatch(socket.gethostname())
    reporter = Reporter("reports")
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    model = DistributedDataParallel(net.to(device), device_ids=[device.index])
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x = torch.randn(128, 64, device=device)
        loss = F.mse_loss(model(x), x.mean(-1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if watch.notice() is not None:
            reporter.report({"step": step, "draining": True}, model.module)
            break
        if step % every == 0:
            reporter.report({"step": step, "loss": loss.item()})


if __name__ == "__main__":
    dist.init_process_group("nccl")
    train()
    dist.destroy_process_group()
