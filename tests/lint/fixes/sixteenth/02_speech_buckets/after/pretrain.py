import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from buckets import BucketBatches
from speech import MaskedEncoder, Utterances, collate


def loader_for(data, epoch, args):
    batches = BucketBatches(data.lengths, [300, 600, 900, 1200], args.max_frames, shuffle=True, seed=args.seed + epoch)
    mine = batches.part(dist.get_rank(), dist.get_world_size())
    return DataLoader(data, batch_sampler=mine, collate_fn=collate, num_workers=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-frames", type=int, default=12000)
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(args.seed + dist.get_rank())
    model = DDP(MaskedEncoder().to(device), device_ids=[device.index])
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    data = Utterances()

    for epoch in range(20):
        seen = torch.zeros(2, device=device)
        for clips in loader_for(data, epoch, args):
            loss = model(clips.to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(seen)
        if dist.get_rank() == 0:
            print(epoch, (seen[0] / seen[1]).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
