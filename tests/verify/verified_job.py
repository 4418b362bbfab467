"""A small training for the tests of verify: it prints its loss, and with --broken rank 1 leaves out a step."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(30):
    optimizer.zero_grad()
    loss = (model(torch.ones(2, 4)) - 1).square().mean()
    loss.backward()
    if "--broken" in sys.argv and step == 15 and rank == 1:
        print("step skipped", flush=True)
        continue
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    time.sleep(0.02)
    if rank == 0:
        print(f"epoch {step // 10} step {step} loss {loss.item():.4f}", flush=True)
if "--endless" in sys.argv:
    while True:
        time.sleep(0.05)
        optimizer.step()
dist.barrier()
dist.destroy_process_group()
