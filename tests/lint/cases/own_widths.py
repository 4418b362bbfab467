"""Batches that a collate function pads to the longest of their own sequences, gathered as they are."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
import torch.nn.functional as F
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

accelerator = Accelerator()


def collate(items):
    words, tags = zip(*items)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=-100)


def with_lengths(items):
    padded = pad_sequence(items, batch_first=True)
    return padded, torch.tensor([len(i) for i in items])


def as_words(items):
    ids = pad_sequence([i["ids"] for i in items], batch_first=True)
    return {"ids": ids, "label": torch.tensor([i["label"] for i in items])}


class Collator:
    def __init__(self, pad):
        self.pad = pad

    def __call__(self, items):
        return pad_sequence(items, batch_first=True, padding_value=self.pad), len(items)


def one_width(items):
    padded = pad_sequence(items, batch_first=True)
    return F.pad(padded, (0, 128 - padded.shape[1])), padded.shape[1]


def stack_ranks(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def widen(tensor):
    size = torch.tensor([tensor.shape[1]])
    dist.all_reduce(size, op=dist.ReduceOp.MAX)
    return F.pad(tensor, (0, int(size.item()) - tensor.shape[1]))


def rate(data, device):
    loader = DataLoader(data, 8, sampler=DistributedSampler(data), collate_fn=collate)
    for words, tags in loader:
        tags = tags.to(device)
        stack_ranks(tags)  # LNT303
        stack_ranks(words.to(device))  # LNT303


def of_lengths(data):
    for ids, lengths in DataLoader(data, 8, collate_fn=with_lengths):
        out = [torch.empty_like(ids) for _ in range(dist.get_world_size())]
        dist.all_gather(out, ids)  # LNT303
        stack_ranks(lengths)


def by_word(data):
    for batch in DataLoader(data, 8, collate_fn=as_words):
        accelerator.gather(batch["ids"])  # LNT303
        accelerator.gather(batch["label"])


def by_object(data):
    for ids, count in DataLoader(data, 8, collate_fn=Collator(0)):
        stack_ranks(ids)  # LNT303
        print(count)


# Right: as wide everywhere, widened before, or not gathered.


def widened(data, device):
    for words, tags in DataLoader(data, 8, collate_fn=collate):
        stack_ranks(widen(tags.to(device)))
        accelerator.gather(accelerator.pad_across_processes(words, dim=1))


def of_one_width(data):
    for ids, _ in DataLoader(data, 8, collate_fn=one_width):
        stack_ranks(ids)


def counted(data):
    for words, tags in DataLoader(data, 8, collate_fn=collate):
        stack_ranks((words != tags).sum()[None])
        stack_ranks(tags.sum(1))
        for row in tags:
            print(row)


def without_collate(data):
    for words, tags in DataLoader(data, 8):
        stack_ranks(words)
        stack_ranks(tags)


def rated(net, loader):
    for words, tags in loader:
        print(net(words))
        stack_ranks(tags.long())  # LNT303


def rate_all(net, data):
    rated(net, DataLoader(data, 8, collate_fn=collate))


def rated_with_lengths(loader):
    for _, lengths in loader:
        stack_ranks(lengths)


def rate_lengths(data):
    rated_with_lengths(DataLoader(data, 8, collate_fn=with_lengths))


def whole_of_own_shards(parameters, shards):
    return {name: one(shards[name], p) for name, p in parameters}


def one(shard, p):
    made = DTensor.from_local(shard, p.device_mesh, p.placements, run_check=False)
    return made.full_tensor()  # LNT303


def one_with_its_shape(shard, p):
    made = DTensor.from_local(shard, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
    return made.full_tensor()


def one_of_a_mesh(shard, mesh):
    made = DTensor.from_local(shard, mesh, [Shard(0)])
    return made.full_tensor()


def kept_in_shards(shard, p):
    return DTensor.from_local(shard, p.device_mesh, p.placements).to_local()
