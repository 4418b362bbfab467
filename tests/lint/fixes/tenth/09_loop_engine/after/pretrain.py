import glob
import os

import torch
import torch.distributed as dist

from corpus import loader_for
from loop_engine import LoopEngine


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    rank, world = dist.get_rank(), dist.get_world_size()
    files = sorted(glob.glob(os.path.join(os.environ["TEXT_DIR"], "*.txt")))
    net = torch.nn.Sequential(torch.nn.Embedding(256, 384), torch.nn.Linear(384, 256))

    def report(epoch, loss):
        if rank == 0:
            print(f"epoch {epoch}: {loss:.4f}")

    LoopEngine(net, loader_for(files, rank, world), device, [report]).fit(epochs=3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
