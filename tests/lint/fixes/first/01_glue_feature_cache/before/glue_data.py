import os

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset


def convert_examples(args, tokenizer, split):
    path = os.path.join(args.data_dir, f"{split}.tsv")
    rows = [line.rstrip("\n").split("\t") for line in open(path)]
    ids = [tokenizer.encode(r[0], max_length=args.max_seq_length, padding="max_length", truncation=True) for r in rows]
    labels = [int(r[1]) for r in rows]
    return ids, labels


def load_and_cache_examples(args, task, tokenizer, evaluate=False):
    if args.local_rank not in [-1, 0]:
        dist.barrier()

    split = "dev" if evaluate else "train"
    cached_features_file = os.path.join(args.data_dir, f"cached_{split}_{task}_{args.max_seq_length}")
    if os.path.exists(cached_features_file):
        features = torch.load(cached_features_file)
    else:
        features = convert_examples(args, tokenizer, split)
        if args.local_rank in [-1, 0]:
            torch.save(features, cached_features_file)

    if args.local_rank == 0:
        dist.barrier()

    ids, labels = features
    return TensorDataset(torch.tensor(ids), torch.tensor(labels))
