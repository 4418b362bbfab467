import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from order import SequentialOrder


class TokenBlocks(Dataset):
    def __init__(self, path, seq_len):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.seq_len = seq_len

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq_len

    def __getitem__(self, i):
        chunk = self.tokens[i * self.seq_len:(i + 1) * self.seq_len + 1].astype(np.int64)
        return torch.from_numpy(chunk)


def collate(rows):
    rows = torch.stack(rows)
    return {"input_ids": rows[:, :-1].contiguous(), "labels": rows[:, 1:].contiguous()}


def data_loader(data, args, consumed):
    order = SequentialOrder(
        total=len(data),
        consumed=consumed,
        micro_batch=args.micro_batch,
        dp_rank=dist.get_rank(),
        dp_size=dist.get_world_size(),
        drop_last=args.drop_last,
    )
    return DataLoader(data, batch_sampler=order, num_workers=args.num_workers, collate_fn=collate, pin_memory=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--resume")
    parser.add_argument("--no-drop-last", dest="drop_last", action="store_false")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = GPT2LMHeadModel(GPT2Config(n_positions=args.seq_len)).cuda()
    consumed = 0
    if args.resume:
        state = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(state["model"])
        consumed = state["consumed"]
    model = DistributedDataParallel(model, device_ids=[local])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))

    for step, batch in enumerate(data_loader(TokenBlocks(args.tokens, args.seq_len), args, consumed)):
        batch = {k: v.cuda(non_blocking=True) for k, v in batch.items()}
        logits = model(batch["input_ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(step, shown.item())
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "consumed": 0}, "final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
