import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from dataset import load_vqa


def train(args, model, dataset):
    model = DDP(model, device_ids=[args.local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for batch in dataset:
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main(args, model):
    if args.local_rank != -1:
        torch.cuda.set_device(args.local_rank)
        dist.init_process_group("nccl")
    train_dataset = load_vqa(args, "train")
    if args.do_train:
        train(args, model, train_dataset)
    if args.do_train and (args.local_rank == -1 or dist.get_rank() == 0):
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(model.state_dict(), f"{args.output_dir}/model.bin")
        if args.local_rank != -1:
            dist.barrier()
