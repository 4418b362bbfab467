import argparse
import math

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    default_data_collator,
    get_scheduler,
)

logger = get_logger(__name__)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", default="EleutherAI/pythia-1.4b")
    parser.add_argument("--dataset_name", default="wikitext")
    parser.add_argument("--dataset_config_name", default="wikitext-2-raw-v1")
    parser.add_argument("--block_size", type=int, default=1024)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output_dir", default=None)
    return parser.parse_args()


def blocks(rows, tokenizer, size):
    ids = sum((tokenizer(text)["input_ids"] for text in rows["text"]), [])
    usable = len(ids) // size * size
    chunks = [ids[i : i + size] for i in range(0, usable, size)]
    return {"input_ids": chunks, "labels": [list(chunk) for chunk in chunks]}


def main():
    args = parse_args()
    accelerator = Accelerator()
    set_seed(17)

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
    with accelerator.main_process_first():
        raw = load_dataset(args.dataset_name, args.dataset_config_name, split="train")
        train = raw.map(
            lambda rows: blocks(rows, tokenizer, args.block_size),
            batched=True,
            remove_columns=raw.column_names,
        )

    loader = DataLoader(
        train, shuffle=True, collate_fn=default_data_collator, batch_size=args.batch_size
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * math.ceil(len(loader) / accelerator.num_processes)
    scheduler = get_scheduler("linear", optimizer, 0, steps)
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, loader, scheduler
    )

    progress = tqdm(range(steps), disable=not accelerator.is_local_main_process)
    for epoch in range(args.epochs):
        model.train()
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.update(1)
        logger.info("epoch %d loss %.4f", epoch, loss.item())

    if args.output_dir is not None:
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            unwrapped = accelerator.unwrap_model(model)
            state_dict = accelerator.get_state_dict(model)
            unwrapped.save_pretrained(
                args.output_dir, state_dict=state_dict, safe_serialization=True
            )
            tokenizer.save_pretrained(args.output_dir)
        else:
            accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
