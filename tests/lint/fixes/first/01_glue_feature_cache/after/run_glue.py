import argparse

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from glue_data import load_and_cache_examples


def train(args, train_dataset, model):
    sampler = RandomSampler(train_dataset) if args.local_rank == -1 else DistributedSampler(train_dataset)
    loader = DataLoader(train_dataset, sampler=sampler, batch_size=args.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    if args.local_rank != -1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.local_rank])
    for ids, labels in loader:
        loss = model(input_ids=ids.to(args.device), labels=labels.to(args.device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate(args, model, tokenizer):
    eval_dataset = load_and_cache_examples(args, args.task_name, tokenizer, evaluate=True)
    loader = DataLoader(eval_dataset, sampler=SequentialSampler(eval_dataset), batch_size=args.batch_size)
    hits = 0
    with torch.no_grad():
        for ids, labels in loader:
            logits = model(input_ids=ids.to(args.device)).logits
            hits += (logits.argmax(-1).cpu() == labels).sum().item()
    return hits / len(eval_dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir")
    parser.add_argument("--task_name", default="mrpc")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    if args.local_rank != -1:
        torch.cuda.set_device(args.local_rank)
        dist.init_process_group(backend="nccl")
    args.device = torch.device("cuda", max(args.local_rank, 0))
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased").to(args.device)

    train_dataset = load_and_cache_examples(args, args.task_name, tokenizer, evaluate=False)
    train(args, train_dataset, model)
    if args.local_rank in [-1, 0]:
        print("acc", evaluate(args, model, tokenizer))


if __name__ == "__main__":
    main()
