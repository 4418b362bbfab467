import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import LoopedLM, shard


def main(steps=1000):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = shard(LoopedLM().cuda())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        ids = torch.randint(0, 8192, (4, 257), generator=draw).cuda()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
