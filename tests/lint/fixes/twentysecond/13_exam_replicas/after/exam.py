import argparse
import os

import torch
import torch.distributed as dist
from datasets import load_dataset
from transformers import AutoTokenizer

from moe_lm import MoELM
from parallel_state import ParallelState

CHOICES = "ABCD"


def prompt(row):
    options = "\n".join(f"{c}. {t}" for c, t in zip(CHOICES, row["choices"]))
    return f"{row['question']}\n{options}\nAnswer:"


def batches(rows, size):
    for begin in range(0, len(rows), size):
        yield rows.select(range(begin, min(begin + size, len(rows))))


@torch.no_grad()
def run_subject(model, tokenizer, rows, batch_size, state):
    rank, size, group = state.expert_data_parallel()
    letters = torch.tensor([tokenizer.encode(f" {c}")[-1] for c in CHOICES], device="cuda")
    counts = torch.zeros(2, device="cuda")
    for index, chunk in enumerate(batches(rows, batch_size)):
        if index % size != rank:
            continue
        enc = tokenizer([prompt(r) for r in chunk], padding=True, return_tensors="pt").to("cuda")
        logits = model(enc["input_ids"])
        last = enc["attention_mask"].sum(-1) - 1
        scores = logits[torch.arange(len(chunk), device="cuda"), last][:, letters]
        answers = torch.tensor([r["answer"] for r in chunk], device="cuda")
        counts += torch.stack([(scores.argmax(-1) == answers).sum(), torch.tensor(len(chunk), device="cuda")])
    dist.all_reduce(counts, group=group)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights")
    parser.add_argument("--ep-size", type=int, default=4)
    parser.add_argument("--subjects", nargs="+", default=["anatomy", "astronomy", "virology"])
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    state = ParallelState(args.ep_size)
    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "right"
    model = MoELM(len(tokenizer), 512, 6, 16, state).cuda().eval()
    if args.weights:
        model.load_state_dict(torch.load(f"{args.weights}/ep_{dist.get_rank() % args.ep_size}.pt"))
    if dist.get_rank() == 0:
        print(f"{state.expert_data_parallel()[1]} copies of every expert")
    for subject in args.subjects:
        rows = load_dataset("cais/mmlu", subject, split="test")
        accuracy = run_subject(model, tokenizer, rows, 16, state)
        if dist.get_rank() == 0:
            print(f"{subject}: {accuracy:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
