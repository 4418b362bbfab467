import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from loop_model import LoopModel
from packing import packed_loader
from row_stream import RowStream


def train(model, optimizer, loader, max_steps, log_every=50):
    step = 0
    for block in loader:
        block = block.cuda()
        logits = model(block[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % log_every == 0:
            mean = loss.detach()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(step, mean.item(), flush=True)
        if step >= max_steps:
            break
    return step


def main(data="shards/web", max_steps=100000):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(LoopModel().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = packed_loader(RowStream(data), length=2048, batch=8)
    steps = train(model, optimizer, loader, max_steps)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), f"model-{steps}.pt")
        print("training complete", flush=True)


if __name__ == "__main__":
    main()
