import os

import torch
import torch.distributed as dist
import torch.nn as nn

from vision_split import PatchTower, SplitVision


class TextWithImages(nn.Module):
    def __init__(self, group, vocab=4000, dim=256):
        super().__init__()
        self.vision = SplitVision(PatchTower(192, dim), group)
        self.embed = nn.Embedding(vocab, dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, images, slots):
        x = self.embed(ids)
        x = x.index_put((slots,), self.vision(images))
        me, world = dist.get_rank(), dist.get_world_size()
        return self.head(x.chunk(world)[me])


def sync_grads(model):
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


def main(steps=200):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = TextWithImages(dist.group.WORLD).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        pictures = int(torch.randint(1, 9, ()))
        ids = torch.randint(0, 4000, (1024,)).cuda()
        images = torch.randn(pictures, 64, 192).cuda()
        slots = torch.randperm(1024)[:pictures].cuda()
        logits = model(ids, images, slots)
        logits.logsumexp(-1).mean().backward()
        sync_grads(model)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
