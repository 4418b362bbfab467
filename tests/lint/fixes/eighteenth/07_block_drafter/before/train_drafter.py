import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM

from chat_data import ChatDataset, pad_batch
from drafter import BlockDrafter


@dataclass
class DraftConfig:
    hidden_size: int
    rope_theta: float = 10000.0
    block_size: int = 8


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    base = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", torch_dtype=torch.bfloat16)
    cfg = DraftConfig(base.config.hidden_size)
    model = BlockDrafter(base, cfg).to(local, torch.bfloat16)
    ddp = DDP(model, device_ids=[local])
    data = ChatDataset("conversations.jsonl")
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=2, sampler=sampler, collate_fn=pad_batch, drop_last=True)
    optimizer = torch.optim.AdamW(model.draft.parameters(), lr=1e-4)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (ids, mask) in enumerate(loader):
            loss = ddp(ids.cuda(), mask.cuda())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 20 == 0 and dist.get_rank() == 0:
                print(epoch, step, round(loss.item(), 4), flush=True)
    if dist.get_rank() == 0:
        torch.save(model.draft.state_dict(), "draft.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
