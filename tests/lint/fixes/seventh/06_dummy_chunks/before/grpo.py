import deepspeed
import torch
import torch.distributed as dist


def chunked_loss(engine, chunks, dummy):
    """Every rank runs the model as often as the one with most chunks."""
    count = torch.tensor([len(chunks)], device=engine.device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    losses = []
    for i in range(int(count.item())):
        if i < len(chunks):
            losses.append(engine(chunks[i]).mean())
        else:
            engine(dummy)
    return torch.stack(losses).sum()


def step(engine, chunks, dummy):
    loss = chunked_loss(engine, chunks, dummy)
    engine.backward(loss)
    engine.step()


def main(model, batches, config, dummy):
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    for chunks in batches:
        step(engine, chunks, dummy)
