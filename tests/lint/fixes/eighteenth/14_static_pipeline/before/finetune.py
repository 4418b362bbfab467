import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM, AutoTokenizer

from corpus import InstructionCorpus
from reader import FixedBatching


@dataclass
class Team:
    rank: int
    size: int
    device: torch.device


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    team = Team(dist.get_rank(), dist.get_world_size(), device)
    tokenizer = AutoTokenizer.from_pretrained("facebook/opt-1.3b")
    model = FSDP(AutoModelForCausalLM.from_pretrained("facebook/opt-1.3b"), device_id=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    corpus = InstructionCorpus("train.txt", lambda s: tokenizer(s)["input_ids"])
    reader = corpus.reader(team, FixedBatching(8), max_len=256, pad=tokenizer.pad_token_id)
    for epoch in range(3):
        for batches in reader:
            for ids in batches:
                ids = ids.to(device)
                logits = model(ids[:, :-1]).logits
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(),
                                       ignore_index=tokenizer.pad_token_id)
                (loss / len(batches)).backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        if team.rank == 0:
            print(f"epoch {epoch} done, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
