import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from checkpoint import save_optimizer_state


def finetune(model, loader, run_path, save_every=500, lr=1e-5):
    rank = dist.get_rank()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    for step, batch in enumerate(loader, start=1):
        batch = {k: v.cuda() for k, v in batch.items()}
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % save_every == 0:
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}")
            save_optimizer_state(model, optimizer, os.path.join(run_path, f"step_{step}"))
            dist.barrier()
