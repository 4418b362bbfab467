import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from packed_data import PackedDataset


def compute_loss(model, batch):
    ids = torch.stack(list(batch), dim=1).cuda()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum")
    return loss, torch.tensor(ids[:, 1:].numel(), device=ids.device)


@torch.no_grad()
def run_eval_loop(model, data_iter):
    total_loss = torch.tensor(0.0, device="cuda")
    total_tokens = torch.tensor(0, dtype=torch.int64, device="cuda")
    nan_count = torch.tensor(0, device="cuda")
    for micro_batch in data_iter:
        loss, tokens = compute_loss(model, micro_batch)
        if torch.isnan(loss):
            nan_count += 1
        else:
            total_loss += loss
            total_tokens += tokens
    dist.all_reduce(total_loss)
    dist.all_reduce(total_tokens)
    dist.all_reduce(nan_count)
    return (total_loss / total_tokens.clamp_min(1)).item(), nan_count.item()


def train(model, train_iter, val_examples, cfg):
    model = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step in range(cfg.max_steps):
        loss, tokens = compute_loss(model, next(train_iter))
        (loss / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % cfg.val_every == 0:
            data = PackedDataset(val_examples, cfg.seq_len, dist.get_rank(), dist.get_world_size())
            mean, nans = run_eval_loop(model, iter(DataLoader(data, batch_size=cfg.batch_size)))
            if dist.get_rank() == 0:
                print(f"step {step} val {mean:.4f} nan {nans}")
