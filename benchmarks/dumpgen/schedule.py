"""What every rank of a training job does in one iteration: its groups, and its program of calls.

A program is a list of steps. A step is what a rank launches at once: one collective, one transfer, or a coalesced batch.
Ranks at the same place of the pipeline (and, where tensors are uneven, of the expert group) share one program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

WORLD = "world"
AXES = ("pp", "dp", "ep", "cp", "tp")  # the last one varies fastest with the rank
DESCS = {
    WORLD: "default_pg",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
}
MAIN_THREAD, AUTOGRAD_THREAD = "pt_main_thread", "pt_autograd_0"
UNEVEN_OPS = frozenset({"all_to_all", "allgather_uneven"})
_LIBRARY = "/opt/venv/lib/python3.11/site-packages"
_C10D = f"{_LIBRARY}/torch/distributed/distributed_c10d.py"
_PYTHON_NAMES = {
    "all_reduce_barrier": "barrier",
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
    "allgather_uneven": "all_gather",
    "coalesced": "batch_isend_irecv",
}

Sizes = tuple[tuple[int, ...], ...]
CodeFrame = tuple[str, str, int]  # function, file, line


@dataclass(frozen=True)
class Group:
    """Ranks that communicate. `number` is its index in the job, `local_id` the `pg_id` on its members."""

    number: int
    axis: str
    name: str
    desc: str
    ranks: tuple[int, ...]
    local_id: int

    @cached_property
    def ranks_text(self) -> str:
        """The members as torch writes them."""
        return str(list(self.ranks))


@dataclass(frozen=True)
class Mesh:
    """How many ranks lie along each axis. `naming`: numbered, hashed, split, or local (equal names, other members)."""

    sizes: Mapping[str, int]
    naming: str = "numbered"

    @cached_property
    def world(self) -> int:
        """Number of ranks."""
        return int(np.prod([self.sizes.get(a, 1) for a in AXES]))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes that have groups; the world is the first."""
        return (WORLD, *(a for a in AXES if self.sizes.get(a, 1) > 1))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All groups, axis by axis."""
        ranks_of = np.arange(self.world).reshape([self.sizes.get(a, 1) for a in AXES])
        groups = [Group(0, WORLD, "0", DESCS[WORLD], tuple(range(self.world)), 0)]
        for local_id, axis in enumerate(self.axes[1:], 1):
            lines = np.moveaxis(ranks_of, AXES.index(axis), -1).reshape(-1, self.sizes[axis]).tolist()
            for color, ranks in enumerate(lines):
                name = self._name(len(groups), local_id, color, ranks)
                groups.append(Group(len(groups), axis, name, DESCS[axis], tuple(ranks), local_id))
        return tuple(groups)

    @cached_property
    def groups_of(self) -> list[dict[str, Group]]:
        """For each rank its group along each axis."""
        found: list[dict[str, Group]] = [{} for _ in range(self.world)]
        for group in self.groups:
            for rank in group.ranks:
                found[rank][group.axis] = group
        return found

    @cached_property
    def places(self) -> list[dict[str, int]]:
        """For each rank its place within its group along each axis."""
        found: list[dict[str, int]] = [{} for _ in range(self.world)]
        for group in self.groups:
            for place, rank in enumerate(group.ranks):
                found[rank][group.axis] = place
        return found

    def _name(self, number: int, local_id: int, color: int, ranks: Sequence[int]) -> str:
        if self.naming == "hashed":
            return hashlib.sha1("_".join(map(str, ranks)).encode(), usedforsecurity=False).hexdigest()
        if self.naming == "split":
            return f"0:split:{local_id}:{color}"
        return str(local_id if self.naming == "local" else number)


@dataclass(frozen=True)
class Part:
    """One recorded call. `peer` is the place within the group of the other side of a transfer, -1 if there is none."""

    op: str
    in_sizes: Sizes
    out_sizes: Sizes
    dtype: str
    peer: int = -1


@dataclass(frozen=True, eq=False)
class Step:
    """What is launched at once. A batch of several parts gets an entry of its own behind them.

    `waits`: later work on the device is ordered behind it (`async_op=False`). `blocks`: the host waits for it as well.
    `frames`: innermost first. `cost_ns`: what the host does before it.
    """

    axis: str
    parts: tuple[Part, ...]
    frames: tuple[CodeFrame, ...]
    batched: bool = False
    waits: bool = True
    blocks: bool = False
    thread: str = MAIN_THREAD
    cost_ns: int = 50_000

    @property
    def is_p2p(self) -> bool:
        """Whether it transfers between two ranks."""
        return self.parts[0].peer >= 0

    @property
    def op(self) -> str:
        """What a reader would call it."""
        return self.parts[0].op

    @cached_property
    def line(self) -> CodeFrame:
        """The innermost frame of the user's code."""
        return next(f for f in self.frames if not f[1].startswith(_LIBRARY))

    def changed(self, **part: object) -> Step:
        """The step with its first part changed."""
        return replace(self, parts=(replace(self.parts[0], **part), *self.parts[1:]))  # type: ignore[arg-type]


Program = list[Step]


@dataclass(frozen=True)
class Style:
    """How the job is written."""

    layers: int = 6
    microbatches: int = 4
    hidden: int = 1024
    depth: int = 20
    dtype: str = "BFloat16"
    batched_transfers: bool = False
    receive_first: bool = True
    sequence_parallel: bool = False
    coalesced_gathers: bool = False
    overlapped: bool = False
    loss_item: bool = True
    barrier: bool = False
    uneven: bool = True
    backend: str = "nccl"


def frames_at(op: str, function: str, line: int, depth: int, thread: str) -> tuple[CodeFrame, ...]:
    """A stack of `depth` frames, innermost first, whose first user frame is `function` at `line` of model.py."""
    python = _PYTHON_NAMES.get(op, op)
    main: list[CodeFrame] = [
        ("train_step", "/workspace/pretrain/train.py", 212),
        ("main", "/workspace/pretrain/train.py", 388),
    ]
    found: list[CodeFrame] = [
        (python, _C10D, 2000 + len(python) * 37),
        (function, "/workspace/pretrain/model.py", line),
    ]
    if thread == AUTOGRAD_THREAD:
        main = [("_engine_run_backward", f"{_LIBRARY}/torch/autograd/graph.py", 829), *main]
    if depth > 4:
        found.insert(1, ("wrapper", f"{_LIBRARY}/torch/distributed/c10d_logger.py", 81))
    while len(found) + len(main) < depth:
        found.append(
            ("_call_impl" if len(found) % 2 else "forward", f"{_LIBRARY}/torch/nn/modules/module.py", 1700 + len(found))
        )
    return tuple((found + main)[: max(depth, 2)])


class ProgramWriter:
    """Writes the program of one iteration for the ranks at one place of the pipeline, the ring and the expert group."""

    def __init__(self, mesh: Mesh, style: Style, place: Mapping[str, int]) -> None:
        self._mesh, self._style = mesh, style
        self._stage, self._expert, self._ring_place = (place.get(a, 0) for a in ("pp", "ep", "cp"))
        self._size = {a: mesh.sizes.get(a, 1) for a in AXES} | {WORLD: mesh.world}
        self._steps: Program = []
        self._thread = MAIN_THREAD

    def iteration(self) -> Program:
        """The steps of one iteration."""
        style, last = self._style, self._size["pp"] - 1
        has_pipeline = last > 0 and style.backend != "gloo"
        self._steps, self._thread = [], MAIN_THREAD
        if style.overlapped:
            self._collective("dp", "_all_gather_base", (style.hidden * 512,), "prefetch", 60, waits=False)
        for _ in range(style.microbatches):
            if has_pipeline and self._stage > 0:
                self._transfer("recv", self._stage - 1, "recv_forward", 130)
            for layer in range(style.layers):
                self._layer("forward", layer, 100)
            if has_pipeline and self._stage < last:
                self._transfer("send", self._stage + 1, "send_forward", 140)
        for _ in range(style.microbatches):
            self._thread = MAIN_THREAD
            if has_pipeline and self._stage < last:
                self._transfer("recv", self._stage + 1, "recv_backward", 150)
            self._thread = AUTOGRAD_THREAD
            for layer in reversed(range(style.layers)):
                self._layer("backward", layer, 200)
            self._thread = MAIN_THREAD
            if has_pipeline and self._stage > 0:
                self._transfer("send", self._stage - 1, "send_backward", 160)
        self._optimizer()
        return self._steps

    def final(self) -> Program:
        """What follows the last iteration."""
        self._steps, self._thread = [], MAIN_THREAD
        self._collective(WORLD, "all_reduce_barrier", (1,), "finish", 420, blocks=True)
        return self._steps

    def _layer(self, phase: str, layer: int, line: int) -> None:
        style, shape = self._style, (4, 512, self._style.hidden)
        if style.sequence_parallel:
            self._collective("tp", "_all_gather_base", (shape[0], shape[1], style.hidden), phase, line)
            self._collective("tp", "_reduce_scatter_base", (shape[0], shape[1], style.hidden), phase, line + 3)
        else:
            self._collective("tp", "all_reduce", shape, phase, line)
            self._collective("tp", "all_reduce", shape, phase, line + 9)
        if self._size["cp"] > 1 and style.backend != "gloo":
            self._ring(phase, line + 12)
        elif self._size["cp"] > 1:
            self._collective("cp", "all_reduce", shape, phase, line + 12)
        if self._size["ep"] > 1 and layer % 2 == 0:
            self._exchange(phase, line + 17)

    def _optimizer(self) -> None:
        style = self._style
        if style.coalesced_gathers and self._size["dp"] > 1 and style.backend != "gloo":
            parts = [self._part("dp", "_all_gather_base", (style.hidden * (k + 1),)) for k in range(3)]
            self._add("dp", tuple(parts), "gather_shards", 300, batched=True)
        for layer in range(style.layers):
            self._collective(
                "dp",
                "_reduce_scatter_base",
                (style.hidden * 64 + layer,),
                "reduce_grads",
                310,
                waits=not style.overlapped,
            )
        self._collective("dp", "_all_gather_base", (style.hidden * 64,), "gather_params", 320)
        if style.uneven and self._size["ep"] > 1 and style.backend != "gloo":
            rows = [((7 * k) % 5 + 1, style.hidden) for k in range(self._size["ep"])]
            self._add(
                "ep", (Part("allgather_uneven", (rows[self._expert],), tuple(rows), style.dtype),), "gather_counts", 330
            )
        self._collective(WORLD, "all_reduce", (1,), "clip_grad_norm", 340, blocks=style.loss_item)
        if style.barrier:
            self._collective(WORLD, "all_reduce_barrier", (1,), "log_metrics", 350, blocks=True)

    def _collective(self, axis: str, op: str, size: tuple[int, ...], function: str, line: int, **more: bool) -> None:
        if self._size[axis] > 1 and axis in self._mesh.axes:
            self._add(axis, (self._part(axis, op, size),), function, line, **more)

    def _part(self, axis: str, op: str, size: tuple[int, ...]) -> Part:
        whole = (size[0] * self._size[axis], *size[1:])
        given, made = (whole if "reduce_scatter" in op else size), (whole if "gather" in op else size)
        return Part(op, (given,), (made,), "Float" if op == "all_reduce_barrier" else self._style.dtype)

    def _exchange(self, function: str, line: int) -> None:
        """Experts get unequal numbers of tokens."""
        many = 64 + (13 * self._expert % 7 if self._style.uneven else 0)
        given, made = (many, self._style.hidden), (128 - many, self._style.hidden)
        self._add("ep", (Part("all_to_all", (given,), (made,), self._style.dtype),), function, line)

    def _transfer(self, op: str, peer: int, function: str, line: int) -> None:
        size = ((4, 512, self._style.hidden),)
        self._add(
            "pp",
            (Part(op, size, size, self._style.dtype, peer),),
            function,
            line,
            batched=self._style.batched_transfers,
        )

    def _ring(self, function: str, line: int) -> None:
        """Each rank gives its keys to the next one."""
        size = ((2, 512, self._style.hidden),)
        ways = (("recv", -1), ("send", 1))
        peers = [(op, (self._ring_place + way) % self._size["cp"]) for op, way in ways]
        parts = [Part(op, size, size, self._style.dtype, peer) for op, peer in peers]
        self._add("cp", tuple(parts if self._style.receive_first else reversed(parts)), function, line, batched=True)

    def _add(self, axis: str, parts: tuple[Part, ...], function: str, line: int, **more: bool) -> None:
        style = self._style
        op = "coalesced" if more.get("batched") and parts[0].peer >= 0 else parts[0].op
        if style.backend == "gloo" and more.get("waits", True):
            more["blocks"] = True
        if style.backend == "gloo":
            parts = tuple(replace(p, op=_GLOO_NAMES.get(p.op, p.op)) for p in parts)
        frames = frames_at(op, function, line, style.depth, self._thread)
        cost_ns = 20_000 + 7_000 * (line % 13)
        self._steps.append(Step(axis, parts, frames, thread=self._thread, cost_ns=cost_ns, **more))


_GLOO_NAMES = {
    "all_reduce_barrier": "barrier",
    "_reduce_scatter_base": "all_reduce",
    "_all_gather_base": "all_gather",
}
