"""A share of the data that goes through generators and batchers; tensors that each rank pads for itself."""

import numpy
import torch
import torch.distributed as dist
from accelerate import Accelerator
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

accelerator = Accelerator()


def of_this_rank(files):
    for i, file in enumerate(files):
        if i % dist.get_world_size() == dist.get_rank():
            yield from file


def shuffled(items):
    for item in items:
        yield item


def trains(net, files, batcher):
    model = DDP(net)
    for batch in batcher.batches(shuffled(of_this_rank(files))):
        model(batch).sum().backward()  # LNT110


def trains_in_step(net, files, batcher):
    model = DDP(net)
    for batch in batcher.batches(of_this_rank(files)):
        done = torch.tensor(0)
        dist.all_reduce(done)
        if done.item() > 0:
            break
        model(batch).sum().backward()
    done = torch.tensor(1)
    dist.all_reduce(done)


def filled_up(items, count):
    left = count
    for item in items[dist.get_rank() :: dist.get_world_size()]:
        yield item
        left -= 1
    for _ in range(left):
        yield None


def trains_on_filled(net, items, count):
    model = DDP(net)
    for batch in filled_up(items, count):
        model(batch).sum().backward()


def counts_tokens(inputs):
    return accelerator.gather_for_metrics(inputs["attention_mask"]).sum()  # LNT303


def counts_its_own_tokens(inputs):
    return accelerator.gather_for_metrics(inputs["attention_mask"].sum()).sum()


def measures(outputs, inputs):
    logits = outputs.logits[..., :-1, :].contiguous()
    labels = inputs["labels"][:, 1:]
    accelerator.gather_for_metrics(logits)  # LNT303
    return accelerator.gather(labels)  # LNT303


def classifies(outputs, inputs):
    predictions = outputs.logits.argmax(dim=-1)
    return accelerator.gather_for_metrics((predictions, inputs["labels"]))


def masks(entropies, mask):
    chosen = entropies[mask.bool()]
    if chosen.numel() == 0:
        return None  # LNT108
    return accelerator.gather(chosen.mean())


class Loss(nn.Module):
    """Which loss it asks is nothing to the others: it has no parameters."""

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.head = nn.Linear(4, 4)

    def forward(self, x, labels):
        if torch.any(labels != -100):
            return self.loss(x, labels)
        return x.mean() * 0


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x, labels):
        if torch.any(labels != -100):
            x = self.head(x)  # LNT111
        return x


def measures_padded(features, count):
    parts = nn.functional.pad(features, [0, 0, 0, -len(features) % count]).chunk(count)
    for part in parts[dist.get_rank() :: dist.get_world_size()]:
        dist.broadcast(part, 0)


def measures_as_they_are(features):
    parts = features.chunk(10)
    for part in parts[dist.get_rank() :: dist.get_world_size()]:
        dist.broadcast(part, 0)  # LNT110


def samples_of_this_rank(files, count):
    batch = []
    for file in [f for i, f in enumerate(files) if i % dist.get_world_size() == dist.get_rank()]:
        for sample in range(count):
            batch.append((file, sample))
            if len(batch) == 3:
                yield batch
                batch = []


def reads(files, count):
    for _ in samples_of_this_rank(files, count):
        dist.barrier()  # LNT110


class Cases(torch.utils.data.Dataset):
    def __init__(self, cases):
        self.index = []
        for number, depth in cases:
            self.index += [(number, z) for z in range(depth)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, item):
        return self.index[item]


class EvenCases(Cases):
    def __init__(self, cases, world_size):
        super().__init__(cases)
        self.index = self.index[: len(self.index) // world_size * world_size]


def cases_of(rank, world, listing):
    return [case for n, case in enumerate(listing) if n % world == rank]


def measures(net, listing):
    mine = cases_of(dist.get_rank(), dist.get_world_size(), listing)
    for x in torch.utils.data.DataLoader(Cases(mine)):
        dist.all_reduce(net(x))  # LNT110


def measures_all(net, listing):
    for x in torch.utils.data.DataLoader(Cases(listing)):
        dist.all_reduce(net(x))


def measures_even(net, listing, world):
    mine = cases_of(dist.get_rank(), world, listing)
    for x in torch.utils.data.DataLoader(EvenCases(mine, world)):
        dist.all_reduce(net(x))


def measures_alone(net, listing):
    mine = cases_of(dist.get_rank(), dist.get_world_size(), listing)
    total = torch.zeros(())
    for x in torch.utils.data.DataLoader(Cases(mine)):
        total += net(x)
    dist.all_reduce(total)


class Years:
    def __init__(self, paths, rank, world_size):
        self.indices = numpy.array_split(numpy.arange(len(paths)), world_size)[rank]

    def __len__(self):
        return len(self.indices) // 8

    def __iter__(self):
        for n in range(len(self)):
            yield self.indices[n * 8 : n * 8 + 8]


class EvenYears:
    def __init__(self, paths, rank, world_size):
        paths = paths[: len(paths) // world_size * world_size]
        self.indices = numpy.array_split(numpy.arange(len(paths)), world_size)[rank]

    def __len__(self):
        return len(self.indices) // 8

    def __iter__(self):
        for n in range(len(self)):
            yield self.indices[n * 8 : n * 8 + 8]


def reads_years(x, paths, rank, world_size):
    for year in Years(paths, rank, world_size):
        dist.all_reduce(x[year])  # LNT110


def reads_even_years(x, paths, rank, world_size):
    for year in EvenYears(paths, rank, world_size):
        dist.all_reduce(x[year])


def filled_to_divide(items, world):
    return items + items[:1] * (-len(items) % world), world


def measures_filled(net, items, rank, world):
    filled, _ = filled_to_divide_evenly(items, world)
    for x in split_dataset_by_node(filled, rank=rank, world_size=world):
        dist.all_reduce(net(x))


def filled_to_divide_evenly(items, world):
    return filled_to_divide(items, world)


def measures_split(net, items, rank, world):
    for x in split_dataset_by_node(items, rank=rank, world_size=world):
        dist.all_reduce(net(x))  # LNT110


def trains_on_its_part(net, items):
    model = DDP(net)
    rank, world = dist.get_rank(), dist.get_world_size()
    per = (len(items) + world - 1) // world
    for x in items[rank * per : (rank + 1) * per]:
        model(x).sum().backward()  # LNT110


def trains_on_its_even_part(net, items):
    model = DDP(net)
    rank, world = dist.get_rank(), dist.get_world_size()
    per = len(items) // world
    for x in items[rank * per : (rank + 1) * per]:
        model(x).sum().backward()


def trains_on_its_filled_part(net, items):
    model = DDP(net)
    rank, world = dist.get_rank(), dist.get_world_size()
    per = (len(items) + world - 1) // world
    items = items + items[: per * world - len(items)]
    for x in items[rank * per : (rank + 1) * per]:
        model(x).sum().backward()


def until_there_is_none(net, items):
    model = DDP(net)
    mine = iter(items[dist.get_rank() :: dist.get_world_size()])
    while True:
        x = next(mine, None)
        if x is None:
            break  # LNT108
        model(x).sum().backward()


def of_the_first(net, items):
    for x in items if dist.get_rank() == 0 else []:
        dist.all_reduce(net(x))  # LNT110


def fills_up_with_blanks(net, items, rank, world):
    model = DDP(net)
    mine = items[rank::world]
    count = (len(items) + world - 1) // world
    for batch in mine + [items[0]] * (count - len(mine)):
        model(batch).sum().backward()


def fills_up_in_place(net, items, rank, world):
    model = DDP(net)
    mine = items[rank::world]
    count = (len(items) + world - 1) // world
    mine += (count - len(mine)) * [items[0]]
    for batch in mine:
        model(batch).sum().backward()


def adds_a_blank(net, items, rank, world):
    model = DDP(net)
    mine = items[rank::world]
    for batch in mine + [items[0]] * world:
        model(batch).sum().backward()  # LNT110


def skips_an_empty_part(grad, rank, world):
    size = -(-grad.numel() // world)
    start = min(rank * size, grad.numel())
    mine = grad[start : min(start + size, grad.numel())]
    if mine.numel() == 0:
        return  # LNT102
    dist.all_reduce(mine)


def works_on_a_part_that_is_there(grads, rank, size):
    for grad in grads:
        mine = grad[rank * size : (rank + 1) * size]
        if len(mine) > 0:
            dist.all_reduce(mine)  # LNT101


def leaves_out_what_is_empty(grads, rank, size):
    for grad in grads:
        mine = grad[rank * size : (rank + 1) * size]
        if not mine.numel():
            continue  # LNT102
        dist.all_reduce(mine)


def works_alone_on_a_part(grads, rank, size):
    for grad in grads:
        mine = grad[rank * size : (rank + 1) * size]
        if mine.numel() > 0:
            mine.mul_(2)
        dist.all_reduce(grad)


def asks_how_large_a_part_is(grads, rank, size):
    for grad in grads:
        mine = grad[rank * size : (rank + 1) * size]
        if mine.numel() > 1024:
            dist.all_reduce(grad)


def gathers_in_a_group(grads, rank, size, group):
    for grad in grads:
        mine = grad[rank * size : (rank + 1) * size]
        if mine.numel() > 0:
            dist.all_reduce(mine, group=group)


class Packed:
    def __init__(self, files, length, repeat=False):
        self.files, self.length = files, length
        self.repeat = repeat

    def _mine(self):
        while True:
            yield from self.files[dist.get_rank() :: dist.get_world_size()]
            if not self.repeat:
                return

    def __iter__(self):
        held = []
        for file in self._mine():
            held.extend(file)
            while len(held) > self.length:
                yield torch.tensor(held[: self.length])
                held = held[self.length :]


class Rounds:
    def __init__(self, files, once):
        self.files = files
        self.only_once = once

    def __iter__(self):
        while True:
            for file in self.files[dist.get_rank() :: dist.get_world_size()]:
                yield file
            if self.only_once:
                break


def goes_through(model, batches):
    total = torch.zeros(())
    for batch in batches:
        loss = model(batch).sum()
        loss.backward()  # LNT110
        total += loss.detach()
    dist.all_reduce(total)
    return total


def goes_in_step(model, items):
    total = torch.zeros(())
    source = iter(items)
    while True:
        batch = next(source, None)
        more = torch.tensor(int(batch is not None))
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        if not more.item():
            break
        model(batch).sum().backward()
    dist.all_reduce(total)
    return total


def trains_on_steps(model, items, steps):
    for step, batch in enumerate(items):
        if step == steps:
            break
        model(batch).sum().backward()


def trains_once_more(net, files, held_out):
    model = DDP(net)
    trains_on_steps(model, Packed(files, 1024, repeat=True), 1000)
    trains_on_steps(model, Rounds(files, once=False), 1000)
    goes_through(model, Packed(held_out, 1024))
    goes_in_step(model, Packed(held_out, 1024))
    for batch in Rounds(held_out, True):
        model(batch).sum().backward()  # LNT110


def part_of(rows, group):
    return torch.tensor_split(rows, dist.get_world_size(group))[dist.get_rank(group)].contiguous()


def gathered(part, world):
    out = [torch.empty_like(part) for _ in range(world)]
    dist.all_gather(out, part)
    return torch.cat(out)


def gathered_by_size(part, world):
    sizes = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(part)]))
    part = torch.nn.functional.pad(part, (0, 0, 0, int(max(sizes)) - len(part)))
    out = [torch.empty_like(part) for _ in range(world)]
    dist.all_gather(out, part)
    return torch.cat(out)


class RowMixer(torch.nn.Module):
    def __init__(self, width, world):
        super().__init__()
        self.mix, self.world = torch.nn.Linear(width, width), world

    def forward(self, rows, group):
        mine = self.mix(part_of(rows, group))
        whole = gathered(mine, self.world)  # LNT303
        again = gathered_by_size(mine, self.world)
        mean = gathered(mine.mean(0), self.world)
        return whole + again + mean


# A rank's own part of a tensor, and what is computed of it.


def parts_of_one(x, rank, world):
    part = x.chunk(world, dim=1)[rank]
    if part.abs().mean() < 0.1:
        return part  # LNT108
    dist.all_reduce(part)
    return part


def close_enough(part, last, limit):
    return (part - last).abs().max().item() < limit


def passes_part(part, last):
    if close_enough(part, last, 0.1):
        return last  # LNT108
    dist.all_gather([torch.empty_like(part)], part)
    return part


def close_on_all(part, last, limit):
    change = (part - last).abs().max()
    dist.all_reduce(change, op=dist.ReduceOp.MAX)
    return change.item() < limit


def passes_on_all(part, last):
    if close_on_all(part, last, 0.1):
        return last
    dist.all_gather([torch.empty_like(part)], part)
    return part


def passes_shape(part, last):
    if part.shape[1] > 4 or part.dim() < 2 or part is None:
        return last
    dist.all_gather([torch.empty_like(part)], part)
    return part


def with_parts(x, last, world):
    mine = x.chunk(world, dim=1)[dist.get_rank()].contiguous()
    passes_part(mine, last)
    passes_on_all(mine, last)
    passes_shape(mine, last)
    passes_part(x.chunk(world, dim=1)[0], last)


def columns_of_one(x, rank, width):
    part = x[:, rank * width : (rank + 1) * width]
    if part.std() < 0.1:
        return part  # LNT108
    dist.all_reduce(part)
    return part


def columns_of_all(x, width):
    part = x[:, :width]
    if part.std() < 0.1:
        return part
    dist.all_reduce(part)
    return part


def rounds_of_one(model, prompts):
    texts = model.generate(prompts)
    for at in range(0, texts.size(1), 16):
        dist.all_reduce(texts[:, at : at + 16].sum())  # LNT115


def rounds_of_all(prompts):
    for at in range(0, prompts.size(1), 16):
        dist.all_reduce(prompts[:, at : at + 16].sum())
