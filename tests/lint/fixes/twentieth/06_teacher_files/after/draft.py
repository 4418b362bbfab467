import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from heads import SeqToHeads, take_part
from shelf import TeacherFiles


class DraftLayer(nn.Module):
    def __init__(self, width, heads, group):
        super().__init__()
        self.heads, self.group = heads, group
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, s, d = x.shape
        qkv = self.qkv(x).view(b, s, 3 * self.heads, d // self.heads)
        q, k, v = SeqToHeads.apply(qkv, self.group, 2, 1).chunk(3, dim=2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        y = SeqToHeads.apply(y.transpose(1, 2).contiguous(), self.group, 1, 2)
        return x + self.out(y.reshape(b, s, d))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", required=True)
    parser.add_argument("--sp", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size() // args.sp, args.sp), mesh_dim_names=("dp", "sp"))
    sp = mesh["sp"].get_group()

    data = TeacherFiles(args.files, 4096)
    sampler = DistributedSampler(data, mesh["dp"].size(), mesh.get_local_rank("dp"), shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=1, sampler=sampler, num_workers=4)
    model = DistributedDataParallel(DraftLayer(4096, 32, sp).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            batch = {k: take_part(v.cuda(), sp) for k, v in batch.items()}
            loss = F.smooth_l1_loss(model(batch["hidden"]), batch["target"], reduction="none")
            loss = (loss.mean(-1) * batch["mask"]).sum() / batch["mask"].sum().clamp(min=1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
