import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from stage_out import StageOut


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = DistributedDataParallel(torch.nn.Linear(256, 256).to(device), device_ids=[device.index])
    optim = torch.optim.AdamW(net.parameters())
    keeper = StageOut("/local_scratch/run", "/shared/run", device)
    for step in range(1, 5001):
        x = torch.randn(64, 256, device=device)
        loss = (net(x) - x.roll(1, -1)).pow(2).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        if step % 500 == 0:
            keeper.store(step, {"rng": torch.get_rng_state(), "net": net.module.state_dict()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
