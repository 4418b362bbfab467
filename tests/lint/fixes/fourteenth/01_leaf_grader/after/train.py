import argparse
import os

import torch
import torch.distributed as dist

from classroom import Classroom
from leaves import leaf_net, loaders


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", default="leaf.pt")
    args = parser.parse_args()

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    is_main = dist.get_rank() == 0

    train_loader, val_loader = loaders(is_main)
    room = Classroom(leaf_net(), torch.device("cuda", local), lr=0.1)

    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        stats = room.one_pass(train_loader, "train")
        if is_main:
            print(f"epoch {epoch}: {stats}")

    if is_main:
        final = room.one_pass(val_loader, "val")
        print(f"final: {final}")
        torch.save(room.net.module.state_dict(), args.save)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
