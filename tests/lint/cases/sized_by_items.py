"""How many parts a function makes is said by the sizes of the items that it is given."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def by_tokens(rows, limit):
    parts, now, used = [], [], 0
    for row in rows:
        count = len(row["ids"])
        if now and used + count > limit:
            parts.append(now)
            now, used = [], 0
        now.append(row)
        used += count
    if now:
        parts.append(now)
    return parts


def by_count(rows, limit):
    parts, now = [], []
    for row in rows:
        now.append(row)
        if len(now) == limit:
            parts.append(now)
            now = []
    return parts


def informative(groups):
    kept = []
    for group in groups:
        if group["rewards"].std() > 0:
            kept.append(group)
    return kept


class Actor:
    def __init__(self, net):
        self.model = FSDP(net)

    def learn(self, rollouts):
        for rows in by_tokens(rollouts, 4096):
            self.model(rows).mean().backward()  # LNT110

    def learn_by_count(self, rollouts):
        for rows in by_count(rollouts, 4):
            self.model(rows).mean().backward()

    def learn_together(self, rollouts):
        parts = by_tokens(rollouts, 4096)
        count = torch.tensor([len(parts)])
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        for i in range(int(count.item())):
            self.model(parts[i % len(parts)]).mean().backward()

    def learn_as_many(self, rollouts):
        parts = by_tokens(rollouts, 4096)
        count = torch.tensor([len(parts)])
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        for rows in parts[: int(count.item())]:
            self.model(rows).mean().backward()

    def learn_informative(self, rollouts):
        for rows in informative(rollouts):
            self.model(rows).mean().backward()  # LNT110

    def learn_all(self, everything):
        for rows in by_tokens(everything, 4096):
            self.model(rows).mean().backward()


def main(net, prompts, engine, everything):
    actor = Actor(net)
    for _ in range(10):
        mine = prompts[dist.get_rank() :: dist.get_world_size()]
        rollouts = [engine.roll_out(p) for p in mine]
        actor.learn(rollouts)
        actor.learn_together(rollouts)
        actor.learn_as_many(rollouts)
        actor.learn_informative(rollouts)
        actor.learn_all(everything)


def main_by_count(net, prompts, engine):
    actor = Actor(net)
    whole = len(prompts) // dist.get_world_size() * dist.get_world_size()
    mine = prompts[dist.get_rank() : whole : dist.get_world_size()]
    actor.learn_by_count([engine.roll_out(p) for p in mine])
