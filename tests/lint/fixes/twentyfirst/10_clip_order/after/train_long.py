import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from transformers import AutoProcessor

from clips import ClipStream
from long_model import VideoLM


def local_piece(x, rank, size, value):
    short = -x.size(1) % size
    x = F.pad(x, (0, short), value=value)
    return x.chunk(size, dim=1)[rank].contiguous()


def shift(labels):
    return F.pad(labels[:, 1:], (0, 1), value=-100)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--index", required=True)
    p.add_argument("--sp", type=int, default=4)
    p.add_argument("--budget", type=int, default=65536)
    p.add_argument("--steps", type=int, default=10000)
    args = p.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size() // args.sp, args.sp), mesh_dim_names=("dp", "sp"))
    dp_rank, sp_rank = mesh["dp"].get_local_rank(), mesh["sp"].get_local_rank()

    model = VideoLM.from_pretrained(args.model, sp_group=mesh["sp"].get_group()).cuda()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    stream = ClipStream(args.index, AutoProcessor.from_pretrained(args.model), args.budget,
                        dp_rank, mesh["dp"].size())
    batches = iter(DataLoader(stream, batch_size=1, num_workers=2))
    for step in range(args.steps):
        batch = next(batches)
        ids = local_piece(batch["input_ids"].cuda(), sp_rank, args.sp, 0)
        labels = local_piece(shift(batch["labels"].cuda()), sp_rank, args.sp, -100)
        logits = model(ids)
        total = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        count = (labels != -100).sum()
        dist.all_reduce(count)
        loss = total * dist.get_world_size() / count.clamp(min=1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
