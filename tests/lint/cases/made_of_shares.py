"""Tensors with a row for each item of this rank's share."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.utils.data import DataLoader, DistributedSampler, Subset


def own_loader(data):
    own = list(range(dist.get_rank(), len(data), dist.get_world_size()))
    return DataLoader(Subset(data, own), batch_size=16)


def gathered(model, data):
    scores = []
    for x in own_loader(data):
        scores.append(model(x))
    scores = torch.cat(scores)
    parts = [torch.zeros_like(scores) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, scores)  # LNT303
    return torch.cat(parts)


def gathered_of_items(model, items):
    kept = []
    for item in items[dist.get_rank() :: dist.get_world_size()]:
        kept.append(model(item))
    rows = torch.stack(kept)
    out = torch.empty(4, *rows.shape)
    dist.all_gather_into_tensor(out, rows)  # LNT303
    return out


def gathered_as_objects(model, data):
    scores = []
    for x in own_loader(data):
        scores.append(model(x))
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, torch.cat(scores).tolist())
    return parts


def gathered_by_accelerate(model, prompts):
    accelerator = Accelerator()
    with accelerator.split_between_processes(prompts) as mine:
        answers = []
        for prompt in mine:
            answers.append(model(prompt))
    return gather_object(answers)


def gathered_by_sampler(model, data):
    scores = []
    for x in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
        scores.append(model(x))
    scores = torch.cat(scores)
    parts = [torch.zeros_like(scores) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, scores)
    return torch.cat(parts)


def gathered_with_sizes(model, data):
    scores = []
    for x in own_loader(data):
        scores.append(model(x))
    scores = torch.cat(scores)
    count = torch.tensor([len(scores)])
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    longest = int(max(counts))
    room = scores.new_zeros(longest)
    room[: len(scores)] = scores
    parts = [torch.zeros_like(room) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, room)
    return [p[: int(n)] for p, n in zip(parts, counts)]


def summed(model, data):
    scores = []
    for x in own_loader(data):
        scores.append(model(x))
    total = torch.cat(scores).sum()
    dist.all_reduce(total)
    return total
