import argparse

import torch
import torch.distributed as dist
from transformers import AutoTokenizer

from shards import all_true, my_range, open_corpus, write_part


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--cache", default=None)
    parser.add_argument("--output", default="tokens")
    parser.add_argument("--tokenizer", default="gpt2")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("mpi")
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)

    dset = open_corpus(args.input, args.split, args.cache)
    if dset is None:
        dist.destroy_process_group()
        return

    first, last = my_range(len(dset))
    encoded = [tokenizer(dset[i]["text"])["input_ids"] for i in range(first, last)]
    count = write_part(f"{args.output}/part_{dist.get_rank():04d}.bin", encoded)

    total = torch.tensor([count])
    dist.all_reduce(total)
    if all_true(count > 0) and dist.get_rank() == 0:
        print(f"{total.item()} tokens", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
