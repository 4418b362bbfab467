import argparse

import deepspeed
import torch
from datasets import load_from_disk
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling
from transformers.integrations import HfDeepSpeedConfig

from board import LayerBoard


def ds_config(args):
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": args.accumulate,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "weight_decay": 0.01}},
    }


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--batch-size", type=int, default=2)
    p.add_argument("--accumulate", type=int, default=8)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--board", default="runs/tune")
    p.add_argument("--local_rank", type=int, default=-1)
    args = p.parse_args()

    deepspeed.init_distributed()
    config = ds_config(args)
    keep = HfDeepSpeedConfig(config)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    data = load_from_disk(args.data).with_format("torch")
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data), drop_last=True,
                        collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm=False))
    board = LayerBoard(args.board)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            batch = {k: v.to(engine.device) for k, v in batch.items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            board.after_backward(engine, loss)
            engine.step()
        engine.save_checkpoint("checkpoints", tag=f"epoch{epoch}")
    board.close()


if __name__ == "__main__":
    main()
