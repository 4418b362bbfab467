import os

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from coach import Coach


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    held_out = TensorDataset(torch.randn(10007, 3, 32, 32), torch.randint(0, 10, (10007,)))
    accuracy = Coach(net, device).evaluate(held_out, batch_size=64)
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
