"""Gradients of which each rank has a part, looked into alone; the inner module of an engine that has a part of each parameter."""

import deepspeed
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Partitioned:
    def __init__(self, params):
        self.rank = dist.get_rank()
        self.parts = [[] for _ in range(dist.get_world_size())]
        for n, p in enumerate(params):
            self.parts[n % len(self.parts)].append(p)
        self.inner = torch.optim.Adam(self.parts[self.rank])

    def publish(self):
        for owner, part in enumerate(self.parts):
            for p in part:
                dist.broadcast(p.data, src=owner)

    def step(self):
        if not all(torch.isfinite(p.grad).all() for p in self.parts[self.rank]):
            return False  # LNT108
        self.inner.step()
        self.publish()
        return True

    def step_together(self):
        bad = torch.zeros(1)
        for p in self.parts[self.rank]:
            if torch.isnan(p.grad).any():
                bad.fill_(1.0)
        dist.all_reduce(bad)
        if bad.item() > 0:
            return False
        self.inner.step()
        self.publish()
        return True


def of_shards(net, loader):
    model = FSDP(net)
    for x in loader:
        model(x).sum().backward()
        for p in model.parameters():
            if p.grad is not None and torch.isinf(p.grad).any():
                break
        if any(not torch.isfinite(p.grad).all() for p in model.parameters()):
            continue  # LNT107
        model.clip_grad_norm_(1.0)


def of_whole_gradients(net, loader):
    model = torch.nn.parallel.DistributedDataParallel(net)
    for x in loader:
        model(x).sum().backward()
        if any(not torch.isfinite(p.grad).all() for p in model.parameters()):
            continue
        dist.barrier()


def looks_at_samples(net, loader):
    config = {"zero_optimization": {"stage": 3}}
    engine, _, _, _ = deepspeed.initialize(model=net, config=config)
    for step, x in enumerate(loader):
        engine.backward(engine(x).sum())
        engine.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(engine.module.generate(x))  # LNT103


def looks_with_all(net, loader):
    engine, _, _, _ = deepspeed.initialize(model=net, config={"zero_optimization": {"stage": 3}})
    for step, x in enumerate(loader):
        engine.backward(engine(x).sum())
        engine.step()
        if step % 100 == 0:
            texts = engine.module.generate(x)
            if dist.get_rank() == 0:
                print(texts)


def looks_at_whole_parameters(net, loader):
    engine, _, _, _ = deepspeed.initialize(model=net, config={"zero_optimization": {"stage": 3}})
    for x in loader:
        engine.backward(engine(x).sum())
        engine.step()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        if dist.get_rank() == 0:
            print(engine.module.generate(x))
