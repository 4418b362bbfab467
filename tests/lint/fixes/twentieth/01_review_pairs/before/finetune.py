"""Fine-tune a small sequence classifier on review pairs."""
import argparse
import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_linear_schedule_with_warmup,
)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="distilroberta-base")
    parser.add_argument("--train", default="data/train.jsonl")
    parser.add_argument("--dev", default="data/dev.jsonl")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--eval_every", type=int, default=200)
    parser.add_argument("--out", default="runs/reviews")
    return parser.parse_args()


def build_loaders(args, tokenizer, accelerator):
    raw = load_dataset("json", data_files={"train": args.train, "dev": args.dev})

    def encode(rows):
        out = tokenizer(rows["left"], rows["right"], truncation=True, max_length=256)
        out["labels"] = rows["label"]
        return out

    with accelerator.main_process_first():
        data = raw.map(encode, batched=True, remove_columns=raw["train"].column_names)
    collate = DataCollatorWithPadding(tokenizer)
    train = DataLoader(data["train"], shuffle=True, batch_size=args.batch, collate_fn=collate)
    dev = DataLoader(data["dev"], batch_size=args.batch * 2, collate_fn=collate)
    return train, dev


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    right, seen = 0, 0
    for batch in loader:
        logits = model(**batch).logits
        guess, gold = accelerator.gather_for_metrics((logits.argmax(-1), batch["labels"]))
        right += (guess == gold).sum().item()
        seen += gold.numel()
    model.train()
    return right / max(seen, 1)


def main():
    args = parse_args()
    accelerator = Accelerator()
    set_seed(17)

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)
    train, dev = build_loaders(args, tokenizer, accelerator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, train, dev = accelerator.prepare(model, optimizer, train, dev)

    total = args.epochs * math.ceil(len(train))
    schedule = get_linear_schedule_with_warmup(optimizer, total // 10, total)
    bar = tqdm(range(total), disable=not accelerator.is_main_process)
    best = 0.0

    model.train()
    done = 0
    for epoch in range(args.epochs):
        for batch in train:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            bar.update(1)
            done += 1

            if bar.n > 0 and bar.n % args.eval_every == 0:
                score = evaluate(accelerator, model, dev)
                accelerator.print(f"epoch {epoch} step {done}: accuracy {score:.4f}")
                if score > best:
                    best = score
                    accelerator.unwrap_model(model).save_pretrained(
                        args.out, is_main_process=accelerator.is_main_process
                    )

    accelerator.wait_for_everyone()
    accelerator.print(f"best accuracy {best:.4f} after {done} steps")


if __name__ == "__main__":
    main()
