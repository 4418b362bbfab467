"""What the ranks of a training with tensor, pipeline and data parallelism call, in the order of issue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

MAIN, BACKWARD = "python3", "pt_autograd_0"


@dataclass(frozen=True)
class Group:
    """A process group. `number`: its place in the list of all groups of the job; `name`: what the dumps call it."""

    number: int
    name: str
    desc: str
    ranks: tuple[int, ...]
    timeout_ms: int = 600_000


@dataclass(frozen=True)
class Step:
    """One call. `peers`: of a transfer the global ranks and which way, ("send", 3); several are a batch.

    `is_async`: the compute stream waits for it only where a later step `joins`. `blocks`: the host waits for the result.
    `root`: the global rank that may be done before the others come; for `reduce` the one that may not.
    """

    group: Group
    op: str
    numel: int
    out_numel: int
    line: int
    peers: tuple[tuple[str, int], ...] = ()
    is_batch: bool = False
    is_async: bool = False
    joins: bool = False
    blocks: bool = False
    root: int = -1
    compute_ns: int = 50_000
    thread: str = MAIN
    dtype: str = "BFloat16"

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send, a receive, or a batch of them."""
        return bool(self.peers)

    @property
    def agrees_on(self) -> tuple[object, ...]:
        """What the members must give alike."""
        return (self.op, self.numel, self.out_numel, self.dtype)


@dataclass(frozen=True)
class Style:
    """How the training is written."""

    tp: int
    pp: int
    dp: int
    layers: int = 2
    microbatches: int = 2
    iterations: int = 3
    hidden: int = 4096
    is_sequence_parallel: bool = False
    batches_transfers: bool = False
    overlaps: bool = True
    reads_loss: bool = True
    barrier: bool = False
    broadcasts_data: bool = True
    sharded_optimizer: bool = True
    eager_sends: bool = False
    compute_ns: int = 200_000
    run_ahead: int = 40  # calls that a host may be ahead of its device
    run_ahead_spread: int = 0  # by up to how many more, different on each rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.tp * self.pp * self.dp


class Mesh:
    """The ranks of a job in their groups, tensor parallel fastest, then data, then pipeline, as Megatron orders them."""

    def __init__(self, style: Style, rng: random.Random) -> None:
        self.style = style
        self.groups: list[Group] = []
        self.of: list[dict[str, Group]] = [{} for _ in range(style.world)]
        is_hashed, model_ms = rng.random() < 0.2, rng.choice((600_000, 600_000, 180_000))
        tp, dp, pp = style.tp, style.dp, style.pp
        kinds = {
            "default_pg": [range(style.world)],
            "DATA_PARALLEL_GROUP": [[self.rank(t, p, d) for d in range(dp)] for p in range(pp) for t in range(tp)],
            "MODEL_PARALLEL_GROUP": [[self.rank(t, p, d) for p in range(pp) for t in range(tp)] for d in range(dp)],
            "TENSOR_MODEL_PARALLEL_GROUP": [
                [self.rank(t, p, d) for t in range(tp)] for p in range(pp) for d in range(dp)
            ],
            "PIPELINE_MODEL_PARALLEL_GROUP": [
                [self.rank(t, p, d) for p in range(pp)] for d in range(dp) for t in range(tp)
            ],
        }
        for kind, lists in kinds.items():
            for ranks in lists:
                number = len(self.groups)
                name = f"{rng.getrandbits(64):016x}" if is_hashed and number else str(number)
                timeout = model_ms if "MODEL" in kind else 600_000
                group = Group(number, name, kind, tuple(sorted(ranks)), timeout)
                self.groups.append(group)
                for r in group.ranks:
                    self.of[r][kind] = group

    def rank(self, t: int, p: int, d: int) -> int:
        """The rank at a place: tensor, pipeline, data."""
        return t + self.style.tp * (d + self.style.dp * p)

    def place(self, rank: int) -> tuple[int, int, int]:
        """(tensor, pipeline, data) of a rank."""
        tp, dp = self.style.tp, self.style.dp
        return rank % tp, rank // (tp * dp), rank // tp % dp


@dataclass
class Writer:
    """Writes the program of one rank."""

    mesh: Mesh
    rank: int
    steps: list[Step] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)

    def write(self) -> list[Step]:
        """All calls of the rank."""
        for i in range(self.mesh.style.iterations):
            self.begins.append(len(self.steps))
            self._iteration(i)
        if self.mesh.style.barrier:
            self._call("default_pg", "barrier", 1, 900, blocks=True)
        return self.steps

    def _call(self, kind: str, op: str, numel: int, line: int, out: int | None = None, **more: object) -> None:
        group = self.mesh.of[self.rank][kind]
        if len(group.ranks) > 1:
            more.setdefault("compute_ns", self.mesh.style.compute_ns)
            self.steps.append(Step(group, op, numel, numel if out is None else out, line, **more))  # type: ignore[arg-type]

    def _layer(self, thread: str, line: int) -> None:
        style, tensor = self.mesh.style, "TENSOR_MODEL_PARALLEL_GROUP"
        size = style.hidden * 128
        if style.is_sequence_parallel:
            is_async = style.overlaps and thread == BACKWARD
            self._call(tensor, "_all_gather_base", size // style.tp, line, size, thread=thread, is_async=is_async)
            self._call(tensor, "_reduce_scatter_base", size, line + 1, size // style.tp, thread=thread, joins=is_async)
        else:
            for part in range(2):
                self._call(tensor, "all_reduce", size, line + part, thread=thread)

    def _iteration(self, number: int) -> None:
        style = self.mesh.style
        _, stage, _ = self.mesh.place(self.rank)
        ahead = min(style.pp - stage - 1, style.microbatches)
        for _ in range(ahead):
            self._transfer(("recv", -1))
            self._forward()
            self._transfer(("send", +1))
        if ahead < style.microbatches:
            self._transfer(("recv", -1))
        for i in range(style.microbatches - ahead):
            is_last = i + 1 == style.microbatches - ahead
            self._forward()
            self._transfer(("send", +1), ("recv", +1))
            self._backward()
            self._transfer(("send", -1), *([] if is_last else [("recv", -1)]))
        for _ in range(ahead):
            self._transfer(("recv", +1))
            self._backward()
            self._transfer(("send", -1))
        self._optimize(number)

    def _forward(self) -> None:
        style = self.mesh.style
        tensor = self.mesh.of[self.rank]["TENSOR_MODEL_PARALLEL_GROUP"]
        if style.broadcasts_data:
            self._call(tensor.desc, "broadcast", 4096, 210, root=tensor.ranks[0], dtype="Long")
        for _ in range(style.layers):
            self._layer(MAIN, 320)

    def _backward(self) -> None:
        for _ in range(self.mesh.style.layers):
            self._layer(BACKWARD, 350)

    def _optimize(self, number: int) -> None:
        style, data = self.mesh.style, "DATA_PARALLEL_GROUP"
        size = style.hidden * 1024
        if style.sharded_optimizer:
            for bucket in range(2):
                sizes = size, size // style.dp
                self._call(
                    data, "_reduce_scatter_base", sizes[0], 500, sizes[1], is_async=style.overlaps, thread=BACKWARD
                )
                size += 4096 * style.dp * bucket
        else:
            self._call(data, "all_reduce", size, 505, is_async=style.overlaps, thread=BACKWARD)
        self._call("MODEL_PARALLEL_GROUP", "all_reduce", 1, 520, joins=True, dtype="Float", blocks=style.reads_loss)
        if style.sharded_optimizer:
            self._call(data, "_all_gather_base", size // style.dp, 530, size, is_async=style.overlaps)
        if self.mesh.place(self.rank)[1] == style.pp - 1:
            self._call(data, "all_reduce", 1, 540, joins=True, dtype="Float", blocks=style.reads_loss)

    def _transfer(self, *parts: tuple[str, int]) -> None:
        """Sends and receives with the stages before (-1) and after (+1)."""
        t, stage, d = self.mesh.place(self.rank)
        style = self.mesh.style
        found = [(op, self.mesh.rank(t, stage + by, d)) for op, by in parts if 0 <= stage + by < style.pp]
        if not found:
            return
        kind, numel = "PIPELINE_MODEL_PARALLEL_GROUP", style.hidden * 512
        if style.batches_transfers:
            self._call(kind, "batch", numel, 410, peers=tuple(found), is_batch=True)
            return
        if len(found) == 2 and stage % 2:
            found.reverse()
        for op, peer in found:
            is_async = op == "send" and len(found) == 2
            self._call(kind, op, numel, 420 + (op == "recv"), peers=((op, peer),), is_async=is_async)


def programs(mesh: Mesh) -> Iterator[tuple[list[Step], list[int]]]:
    """Of each rank its calls, and where its iterations begin."""
    for rank in range(mesh.style.world):
        writer = Writer(mesh, rank)
        yield writer.write(), writer.begins
