import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from policy import Policy


def build(mesh, vocab=2048, width=128):
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(3)]
    module = nn.Sequential(nn.Embedding(vocab, width), *layers, nn.Linear(width, vocab)).cuda()
    for layer in module[1:-1]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def rollout(step, rank, size=16, length=256):
    gen = torch.Generator().manual_seed(7919 * step + rank)
    used = torch.randint(8, length, (size,), generator=gen)
    return {
        "tokens": torch.randint(0, 2048, (size, length), generator=gen).cuda(),
        "mask": (torch.arange(length)[None] < used[:, None]).long().cuda(),
        "advantage": torch.randn(size, generator=gen).cuda(),
    }


def main(steps=200):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    module = build(mesh)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-6)
    policy = Policy(module, optimizer, token_limit=1024, dp_group=mesh.get_group("fsdp"))
    for step in range(steps):
        batch = rollout(step, dist.get_rank())
        batch["old"] = policy.old_logp(batch)
        policy.update(batch, mini_size=8)
        if dist.get_rank() == 0:
            print("step", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
