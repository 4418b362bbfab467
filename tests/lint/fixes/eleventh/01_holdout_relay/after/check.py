import os

import torch
import torch.distributed as dist

from holdout import Holdout
from relay import Relay

WIDTH = 512


def histogram(step, collected):
    counts = torch.zeros(10)
    for out, _ in collected:
        counts += torch.bincount(out.argmax(-1), minlength=10)
    print(f"step {step}: predicted classes {counts.tolist()}")


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    last = dist.get_rank() == dist.get_world_size() - 1
    stage = torch.nn.Linear(WIDTH, 10) if last else torch.nn.Linear(WIDTH, WIDTH)
    torch.manual_seed(3)
    batches = [(torch.randn(32, WIDTH), torch.randint(0, 10, (32,))) for _ in range(8)]
    loss = Holdout(Relay(stage, WIDTH, device), batches, observer=histogram).run(step=0)
    if dist.get_rank() == 0:
        print(f"holdout loss {loss:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
