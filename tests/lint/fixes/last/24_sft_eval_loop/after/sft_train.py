import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from sft_data import setup_dataloader


def setup_model(model):
    for block in model.model.layers:
        fully_shard(block)
    return fully_shard(model)


def compute_loss(model, micro_batch):
    logits = model(micro_batch["input_ids"], position_ids=micro_batch["position_ids"]).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), micro_batch["target_ids"].flatten(), reduction="none"
    )
    mask = micro_batch["loss_mask"].flatten()
    return (loss * mask).sum(), mask.sum()


@torch.no_grad()
def run_eval_loop(model, val_config, tokenizer):
    model.eval()
    total_loss = torch.tensor(0.0, device="cuda")
    total_tokens = torch.tensor(0, device="cuda")
    data_iter = iter(setup_dataloader(val_config, tokenizer, max_epochs=1))
    while True:
        micro_batch = next(data_iter, None)
        has_data = torch.tensor(0 if micro_batch is None else 1, device="cuda")
        dist.all_reduce(has_data, op=dist.ReduceOp.MIN)
        if has_data.item() == 0:
            break
        micro_batch = {k: v.to("cuda") for k, v in micro_batch.items()}
        loss, tokens = compute_loss(model, micro_batch)
        total_loss += loss
        total_tokens += tokens

    dist.all_reduce(total_loss)
    dist.all_reduce(total_tokens)
    model.train()
    return (total_loss / total_tokens.clamp(min=1)).item()


def train(model, optimizer, config, tokenizer):
    model = setup_model(model)
    data_iter = iter(setup_dataloader(config.data, tokenizer))
    for step in range(config.max_steps):
        if step % config.val_interval == 0:
            print(step, run_eval_loop(model, config.val_data, tokenizer))
        for _ in range(config.grad_accum_steps):
            micro_batch = {k: v.to("cuda") for k, v in next(data_iter).items()}
            loss, tokens = compute_loss(model, micro_batch)
            (loss / tokens.clamp(min=1) / config.grad_accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
