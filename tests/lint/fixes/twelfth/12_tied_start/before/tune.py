import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from small_lm import SmallLM
from spread import build, share


def main(source):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = build(lambda: SmallLM(32000, 512, 6), source, device)
    share(net)
    net = DistributedDataParallel(net, device_ids=[device.index])
    optim = torch.optim.AdamW(net.parameters(), lr=1e-5)
    for step in range(1000):
        ids = torch.randint(0, 32000, (4, 257), device=device)
        logits = net(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optim.zero_grad()
        loss.backward()
        optim.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
