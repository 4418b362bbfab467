import argparse

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy

from shards import river_loaders
from water import Water, Wave, next_token_loss


@torch.no_grad()
def validate(fabric, model, loader, max_iters):
    fabric.barrier()
    model.eval()
    losses = []
    batches = iter(loader)
    for _ in range(max_iters):
        batch = next(batches, None)
        ready = torch.tensor(float(batch is not None), device=fabric.device)
        if fabric.all_reduce(ready, reduce_op="min").item() == 0:
            break
        batch = fabric.to_device(batch)
        logits = model(batch[:, :-1])
        losses.append(next_token_loss(logits, batch[:, 1:]))
    val_loss = torch.stack(losses).mean() if losses else torch.tensor(float("nan"), device=fabric.device)
    model.train()
    fabric.barrier()
    return fabric.all_reduce(val_loss, reduce_op="mean")


def fit(fabric, model, opt, train_loader, val_loader, args):
    for step, batch in enumerate(train_loader, 1):
        if step > args.steps:
            break
        batch = fabric.to_device(batch)
        loss = next_token_loss(model(batch[:, :-1]), batch[:, 1:])
        fabric.backward(loss)
        opt.step()
        opt.zero_grad()
        if step % args.eval_every == 0:
            val_loss = validate(fabric, model, val_loader, args.eval_iters)
            fabric.print(f"step {step} val {val_loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--eval-every", type=int, default=500)
    parser.add_argument("--eval-iters", type=int, default=100)
    args = parser.parse_args()
    fabric = Fabric(devices=args.devices, strategy=FSDPStrategy(auto_wrap_policy={Wave}), precision="bf16-true")
    fabric.launch()
    model = fabric.setup(Water())
    opt = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=3e-4))
    train_loader, val_loader = river_loaders(args, fabric.global_rank, fabric.world_size)
    fit(fabric, model, opt, train_loader, val_loader, args)


if __name__ == "__main__":
    main()
