import argparse
import functools
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, StateDictType
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoTokenizer, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block

from grammar_data import GrammarPairs

bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
save_policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)


def train_epoch(model, rank, loader, optimizer, sampler, epoch):
    model.train()
    sampler.set_epoch(epoch)
    stats = torch.zeros(2, device=rank)
    for batch in loader:
        batch = {k: v.to(rank) for k, v in batch.items()}
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        stats[0] += loss.item()
        stats[1] += 1
    dist.all_reduce(stats, op=dist.ReduceOp.SUM)
    return (stats[0] / stats[1]).item()


@torch.no_grad()
def validate(model, rank, loader):
    model.eval()
    stats = torch.zeros(2, device=rank)
    for batch in loader:
        batch = {k: v.to(rank) for k, v in batch.items()}
        stats[0] += model(**batch).loss.item()
        stats[1] += 1
    dist.all_reduce(stats, op=dist.ReduceOp.SUM)
    return (stats[0] / stats[1]).item()


def save_model(model, rank, name, epoch, loss):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, save_policy):
        cpu_state = model.state_dict()
    if rank == 0:
        path = f"{name}-{epoch:02d}-{loss:.4f}.pt"
        torch.save(cpu_state, path)
        print(f"--> saved {path}")


def fsdp_main(args):
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = T5ForConditionalGeneration.from_pretrained(args.model)
    train_set = GrammarPairs(tokenizer, args.train_csv, args.max_len)
    val_set = GrammarPairs(tokenizer, args.val_csv, args.max_len)
    train_sampler = DistributedSampler(train_set, shuffle=True)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler, num_workers=2, drop_last=True)
    val_loader = DataLoader(val_set, args.batch_size, sampler=val_sampler, num_workers=2)

    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={T5Block})
    model = FSDP(model, auto_wrap_policy=policy, mixed_precision=bf16, device_id=rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    best_val_loss = float("inf")
    for epoch in range(1, args.epochs + 1):
        t0 = time.time()
        train_loss = train_epoch(model, rank, train_loader, optimizer, train_sampler, epoch)
        val_loss = validate(model, rank, val_loader)
        if rank == 0:
            print(f"epoch {epoch}: train {train_loss:.4f} val {val_loss:.4f} ({time.time() - t0:.0f}s)")
        if val_loss < best_val_loss:
            best_val_loss = val_loss
            if args.save_model:
                save_model(model, rank, args.name, epoch, val_loss)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="t5-large")
    parser.add_argument("--name", default="t5-grammar")
    parser.add_argument("--train-csv", default="data/train.csv")
    parser.add_argument("--val-csv", default="data/val.csv")
    parser.add_argument("--max-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--save-model", action="store_true")
    fsdp_main(parser.parse_args())
