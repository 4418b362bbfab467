import os

import torch
import torch.distributed as dist

from mixed_loop import MixedLoop


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1000)
    )
    loop = MixedLoop(net, device)
    torch.manual_seed(1 + dist.get_rank())
    for turn in range(2000):
        loss = loop.round((torch.randn(64, 512), torch.randint(0, 1000, (64,))))
        if turn % 100 == 0 and dist.get_rank() == 0:
            print(f"round {turn}: {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
