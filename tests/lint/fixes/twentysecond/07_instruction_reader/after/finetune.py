import argparse
import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from transformers import AutoModelForCausalLM, AutoTokenizer

from reader import Gang, InstructionReader, LengthBatching, StaticBatching


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--max-seq-len", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--max-num-elements", type=int, default=8192)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    gang = Gang()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = FSDP(
        AutoModelForCausalLM.from_pretrained(args.model),
        auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=10_000_000),
        device_id=torch.cuda.current_device(),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    batching = StaticBatching(args.batch_size) if args.batch_size else LengthBatching(args.max_num_elements)
    reader = InstructionReader(args.data, tokenizer, gang, batching, args.max_seq_len)

    for epoch in range(3):
        for batch in reader:
            batch = {k: v.to(gang.device) for k, v in batch.items()}
            loss = model(**batch).loss
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        if gang.rank == 0:
            print(f"epoch {epoch}: last loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
