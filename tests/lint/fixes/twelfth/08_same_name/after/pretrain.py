import argparse
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from run_dirs import RunDirs
from world import chief, join


def parse(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="logs")
    parser.add_argument("--name", required=True)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args(argv)


def epoch(net, optim, device, steps=200):
    for _ in range(steps):
        x = torch.randn(32, 128, device=device)
        loss = (net(x) - x.flip(1)).pow(2).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()


def main(argv):
    args = parse(argv)
    dirs = RunDirs(args.root, args.name)
    if dirs.taken() and not args.resume:
        print("a run of this name exists, choose another with --name")
        return -1
    device = join()
    dist.barrier()
    if chief():
        dirs.create()
    net = torch.nn.Linear(128, 128).to(device)
    dist.barrier()
    if args.resume and dirs.newest():
        net.load_state_dict(torch.load(dirs.newest(), map_location=device))
    net = DistributedDataParallel(net, device_ids=[device.index])
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(20):
        epoch(net, optim, device)
        if chief():
            torch.save(net.module.state_dict(), f"{dirs.weights}/{number:04d}.pt")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
