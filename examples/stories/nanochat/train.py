"""Base training of a small language model on four ranks without DDP: the optimizer is sharded and does the communication.

    torchrun --standalone --nproc-per-node 4 train.py              trains in about ten seconds
    torchrun --standalone --nproc-per-node 4 train.py --broken     the incident: the evaluation of rank 3 gets no data and no error
    torchrun --standalone --nproc-per-node 4 train.py --fault NAME another fault, see FAULTS

A shard of text has row groups, and a rank reads every fourth of them, tokenises the documents, and fills batches. A step of
the optimizer starts all reduce_scatters at once, updates the rank's own slice of each matrix, and gathers the slices again.
The loss on the validation shard is summed over the ranks; rank 0 saves the model, and every rank its part of the optimizer.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

FAULTS = {
    "none": "the healthy program",
    "few_row_groups": "rank 3 starts behind the three row groups of the validation shard (what --broken selects)",
    "data_exhausted": "the loader of rank 2 ends one step earlier than the others",
    "local_skip": "rank 1 alone skips an optimizer step, because its own gradients are infinite",
    "rank0_metric": "a second metric is computed where rank == 0, and reduces",
    "checkpoint_folder": "ranks save before rank 0 has made the folder",
    "slow_tokenizer": "rank 3 takes half a second longer for every row group: slow, not hung",
}
LETTERS = "abcdefghijklmnopqrstuvwxyz ."
LENGTH, BATCH, WIDTH, LAYERS, FAULT_STEP, EVAL_EVERY, SAVE_EVERY = 32, 8, 32, 4, 12, 10, 15
Batch = tuple[Tensor, Tensor]
# Newer names first: the older ones warn.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def read_shard(split: str) -> list[list[str]]:
    """The row groups of a shard, each with documents; words with sounds that alternate, so that there is much to learn."""
    rng = np.random.default_rng(0 if split == "train" else 1)
    groups = 8 if split == "train" else 3
    syllables = ["ka", "to", "mi", "ru", "se", "no"]
    words = [["".join(rng.choice(syllables, 3)) for _ in range(12)] for _ in range(groups * 24)]
    documents = [" ".join(line) + "." for line in words]
    return [documents[group::groups] for group in range(groups)]


def row_groups(split: str, rank: int, world: int, fault: str) -> Iterator[list[str]]:
    """Every `world`-th row group, from the one of this rank, again and again."""
    shard = read_shard(split)
    first = rank if fault == "few_row_groups" else rank % len(shard)  # the fix: no rank starts behind the end
    while True:  # <- here
        yield from shard[first::world]  # <- here


def tokenise(document: str) -> list[int]:
    return [LETTERS.index(letter) for letter in document]


def batches(split: str, rank: int, world: int, fault: str) -> Iterator[Batch]:
    """Batches of tokens and the tokens that follow them."""
    tokens: list[int] = []
    for number, documents in enumerate(row_groups(split, rank, world, fault)):  # <- here
        if fault == "data_exhausted" and split == "train" and rank == 2 and number == 5:
            return  # <- data_exhausted
        time.sleep(0.5 if fault == "slow_tokenizer" and rank == 3 else 0)  # <- slow_tokenizer
        tokens += [token for document in documents for token in tokenise(document)]
        while len(tokens) > BATCH * (LENGTH + 1):
            block, tokens = torch.tensor(tokens[: BATCH * (LENGTH + 1)]).view(BATCH, -1), tokens[BATCH * (LENGTH + 1) :]
            yield block[:, :-1], block[:, 1:]


class Model(nn.Module):
    """Predicts the next letter from the last three."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(len(LETTERS), WIDTH))
        self.layers = nn.ParameterList(0.5 * torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(LAYERS))
        self.mix, self.scale = nn.Parameter(torch.eye(3)[0]), nn.Parameter(torch.ones(LAYERS))
        self.head = nn.Parameter(0.1 * torch.randn(len(LETTERS), WIDTH))

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        hidden = F.embedding(tokens, self.embedding)
        hidden = sum(
            share * F.pad(hidden, (0, 0, back, 0))[:, : hidden.shape[1]] for back, share in enumerate(self.mix)
        )
        for layer, scale in zip(self.layers, self.scale, strict=True):
            hidden = hidden + scale * F.gelu(F.layer_norm(hidden, (WIDTH,)) @ layer)
        return F.cross_entropy((F.layer_norm(hidden, (WIDTH,)) @ self.head.T).flatten(0, 1), following.flatten())


class ShardedAdam:
    """Adam with a quarter of the state on each rank; every step is the same sequence of collectives on all ranks."""

    def __init__(self, model: Model, rank: int, world: int, rate: float = 0.01) -> None:
        self.rank, self.world, self.rate, self.steps = rank, world, rate, 0
        self.small = [model.mix, model.scale]
        self.large = [model.embedding, *model.layers, model.head]
        self.state = {p: torch.zeros(2, *self.own(p).shape) for p in self.small + self.large}

    def own(self, parameter: Tensor) -> Tensor:
        """The rows of a large parameter that this rank updates; a small one is updated by all."""
        return parameter.data.chunk(self.world)[self.rank] if parameter.dim() > 1 else parameter.data

    def step(self) -> None:
        self.steps += 1
        started = [(dist.all_reduce(p.grad, async_op=True), p, p.grad) for p in self.small]
        for parameter in self.large:
            gradient = torch.empty_like(self.own(parameter))
            started.append((reduce_scatter(gradient, parameter.grad, async_op=True), parameter, gradient))
        gathered = []
        for work, parameter, gradient in started:
            work.wait()
            own = self.update(parameter, gradient / self.world)
            if parameter.dim() > 1:
                gathered.append(all_gather(parameter.data, own, async_op=True))
        for work in gathered:
            work.wait()

    def update(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        mean, square = self.state[parameter]
        mean.lerp_(gradient, 0.1)
        square.lerp_(gradient.square(), 0.05)
        change = mean / (1 - 0.9**self.steps) / ((square / (1 - 0.95**self.steps)).sqrt() + 1e-8)
        return self.own(parameter).sub_(self.rate * change).clone()


@torch.no_grad()
def evaluate(model: Model, rank: int, world: int, fault: str) -> float:
    """The mean loss on the validation shard."""
    loader = batches("val", rank, world, fault)
    loss = torch.stack([model(*next(loader)) for _ in range(2)]).mean()  # <- here
    dist.all_reduce(loss)  # <- data_exhausted
    return loss.item() / world


@torch.no_grad()
def spelling(model: Model, rank: int) -> float:
    """A second metric: how surprised the model is by one sentence per rank."""
    tokens = torch.tensor([tokenise("kato miru seno"[rank:])])
    surprise = model(tokens[:, :-1], tokens[:, 1:])
    dist.all_reduce(surprise)  # <- rank0_metric
    return surprise.item()


def save(folder: Path, step: int, model: Model, optimizer: ShardedAdam, fault: str) -> None:
    if optimizer.rank == 0 or fault != "checkpoint_folder":
        time.sleep(0.3 if fault == "checkpoint_folder" else 0)
        folder.mkdir(exist_ok=True)  # by whoever comes first
    if optimizer.rank == 0:
        torch.save(model.state_dict(), folder / f"model-{step}.pt")
    torch.save(list(optimizer.state.values()), folder / f"optimizer-{step}-{optimizer.rank}.pt")  # <- checkpoint_folder


def train(args: argparse.Namespace, folder: Path) -> None:
    rank, world, fault = dist.get_rank(), dist.get_world_size(), args.fault
    torch.manual_seed(0)
    model = Model()
    optimizer, loader = ShardedAdam(model, rank, world), batches("train", rank, world, fault)
    for step, batch in enumerate(loader, start=1):  # <- data_exhausted
        loss = model(*batch)
        model.zero_grad()
        loss.backward()
        if fault != "local_skip" or step != FAULT_STEP or rank != 1:  # <- local_skip
            optimizer.step()  # <- local_skip
        if step % EVAL_EVERY == 0:
            mean = evaluate(model, rank, world, fault)
            if fault != "rank0_metric" or rank == 0:  # <- rank0_metric
                spelling(model, rank)  # <- rank0_metric
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f} validation {mean:.3f}", flush=True)
        if step % SAVE_EVERY == 0:
            save(folder, step, model, optimizer, fault)
        if step == args.steps:
            break
    evaluate(model, rank, world, fault)  # <- data_exhausted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what shall go wrong")
    parser.add_argument("--broken", dest="fault", action="store_const", const="few_row_groups", help="the incident")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        dist.broadcast_object_list(shared, src=0)
        train(args, Path(shared[0]) / "checkpoints")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
