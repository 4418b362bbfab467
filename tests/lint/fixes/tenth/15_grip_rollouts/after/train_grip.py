import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from grip_policy import GripPolicy
from rollouts import evaluate


def main(steps=2000, every=500):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(GripPolicy().cuda(), find_unused_parameters=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, steps + 1):
        obs = {"image": torch.randn(32, 3072)}
        if (step + rank) % 3:
            obs["subtask"] = torch.randn(32, 64)
        loss = model(obs, torch.randn(32, 7, device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % every == 0:
            rate = evaluate(model.module, episodes=64)
            if rank == 0:
                print(f"step {step}: success {rate:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
