"""Rules that need no more than the lines in front of them, asked while a file is lowered."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from unhang.lint import known
from unhang.lint.ir import Found

Ask = Callable[["Syntax", Any], None]
_INIT = {"torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"}
_BOUND_AT_INIT = ("NCCL_", "TORCH_NCCL_", "GLOO_", "MASTER_", "TORCH_DISTRIBUTED_DEBUG", "TORCH_FR_")
_SET_DEVICE = {"torch.cuda.set_device", "torch.accelerator.set_device_index", "torch.cuda.device"}
_DATA_LOADER = {"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"}
_SAMPLER = {"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"}
_CHECKPOINT = {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}
_CHANCE = {"random.random", "random.uniform", "numpy.random.rand", "numpy.random.uniform", "torch.rand"}
_DDP = {name for name, sort in known.WRAPPERS.items() if sort == "ddp"}


class Syntax:
    """What the rules share while they see a file once, from the first line to the last."""

    def __init__(self, names: dict[str, str], data: bytes) -> None:
        self.names, self.data = names, data
        self.found: list[Found] = []
        self._starts: list[int] | None = None
        self.calls: dict[str, list[tuple[int, ast.Call]]] = {}
        self.environment: list[tuple[int, ast.AST, str, ast.expr]] = []
        self.dropped: set[int] = set()
        self.backwards: dict[int, list[ast.Call]] = {}
        self.loops: list[tuple[int, ast.For]] = []
        self.chances: list[ast.If] = []

    # What the lowering tells.

    def call(self, function: int, node: ast.Call, name: str) -> None:
        """A call, in the function of this number."""
        if name in _WATCHED:
            full = self.full(node.func)
            self.calls.setdefault(full, []).append((function, node))
            if name == "backward":
                self.backwards.setdefault(function, []).append(node)
            if name in ("setdefault", "putenv") and node.args and full in ("os.environ.setdefault", "os.putenv"):
                self._environ(function, node, node.args[0], node.args[1] if len(node.args) > 1 else node.args[0])

    def statement(self, node: ast.Expr) -> None:
        """A call whose result is dropped."""
        self.dropped.add(id(node.value))

    def loop(self, function: int, node: ast.For) -> None:
        """A loop over what a call gives."""
        if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Attribute):
            self.loops.append((function, node))

    def condition(self, node: ast.If) -> None:
        """A branch in a function that is called `forward`."""
        self.chances.append(node)

    def assign(self, function: int, target: ast.expr, value: ast.expr, node: ast.AST) -> None:
        """An assignment to an attribute or an item."""
        if isinstance(target, ast.Subscript):
            if self.full(target.value) == "os.environ":
                self._environ(function, node, target.slice, value)
        elif isinstance(target, ast.Attribute) and target.attr in (
            "_DEFAULT_PG_TIMEOUT",
            "default_pg_timeout",
            "default_pg_nccl_timeout",
        ):
            self.add("LNT401", node, name=target.attr)

    def _environ(self, function: int, node: ast.AST, key: ast.expr, value: ast.expr) -> None:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            self.environment.append((function, node, key.value, value))

    # What the rules use.

    def full(self, node: ast.expr) -> str:
        """The full name of a dotted name; empty: it is something else."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return f"?.{names[0]}" if names else ""
        names.append(self.names.get(node.id, node.id))
        return ".".join(reversed(names))

    def of(self, *fulls: str) -> Iterator[tuple[int, ast.Call]]:
        """All calls of these functions."""
        for full in fulls:
            yield from self.calls.get(full, ())

    def offset(self, line: int, column: int) -> int:
        """Where a place is in the bytes of the file. `column` counts bytes, as `ast` has it."""
        if self._starts is None:
            self._starts = [0]
            for part in self.data.split(b"\n"):
                self._starts.append(self._starts[-1] + len(part) + 1)
        return self._starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        """From where to where it is in the bytes of the file."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def add(
        self, code: str, node: Any, edits: list[tuple[int, int, str]] | None = None, is_safe: bool = False, variant: str = "",
        **words: str,
    ) -> None:  # fmt: skip
        """Notes a finding at a node."""
        self.found.append(Found(code, node.lineno, node.col_offset + 1, words, [], edits or [], is_safe, variant))

    def without(self, call: ast.Call, keyword: ast.keyword) -> list[tuple[int, int, str]]:
        """The edit that takes a keyword out of a call, with the comma before it; none where there is a comment in between."""
        start, end = self.span(keyword)
        others = [*call.args, *call.keywords]
        before = [self.span(o)[1] for o in others if self.span(o)[1] <= start]
        after = [self.span(o)[0] for o in others if self.span(o)[0] >= end]
        cut = (max(before), end) if before else (start, min(after) if after else end)
        return [] if b"#" in self.data[cut[0] : cut[1]] else [(*cut, "")]

    def finish(self) -> list[Found]:
        """Asks every rule, after the last line."""
        for rule in _RULES:
            rule(self)
        return self.found


def argument(node: ast.Call, name: str, at: int = -1) -> ast.expr | None:
    """The argument of this name, or at this position."""
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    return node.args[at] if 0 <= at < len(node.args) else None


def keyword_of(node: ast.Call, name: str) -> ast.keyword | None:
    """The keyword of this name."""
    return next((k for k in node.keywords if k.arg == name), None)


def is_true(node: ast.expr | None) -> bool:
    """Whether it is the constant True."""
    return isinstance(node, ast.Constant) and node.value is True


def has_stars(node: ast.Call) -> bool:
    """Whether some arguments are not written out."""
    return any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args)


# Rules.


def async_never_waited(s: Syntax) -> None:
    """`dist.all_reduce(x, async_op=True)` whose handle is dropped."""
    for full, calls in s.calls.items():
        if known.collective(full) is None:
            continue
        for _, node in calls:
            keyword = keyword_of(node, "async_op")
            if keyword is not None and is_true(keyword.value) and id(node) in s.dropped:
                s.add("LNT305", node, s.without(node, keyword), True, call=full.rpartition(".")[2])


def retained_graph(s: Syntax) -> None:
    """`backward(retain_graph=True)` in a function with one backward pass, not in an inner loop."""
    for nodes in s.backwards.values():
        node = nodes[0]
        keyword = keyword_of(node, "retain_graph")
        if (
            len(nodes) == 1
            and keyword is not None
            and is_true(keyword.value)
            and keyword_of(node, "create_graph") is None
        ):
            s.add("LNT410", node, s.without(node, keyword))


def anomaly_detection(s: Syntax) -> None:
    """Anomaly detection that is always on."""
    names = (
        "torch.autograd.set_detect_anomaly",
        "torch.autograd.anomaly_mode.set_detect_anomaly",
        "torch.set_detect_anomaly",
    )
    for _, node in s.of(*names):
        mode = argument(node, "mode", 0)
        if is_true(mode) and mode is not None:
            start, end = s.span(mode)
            s.add("LNT411", node, [(start, end, "False")] if id(node) in s.dropped else [], False)


def init_without_timeout(s: Syntax) -> None:
    """The limit of collectives is left to the default of the backend."""
    for _, node in s.of(*_INIT):
        if argument(node, "timeout", 3) is None and not has_stars(node):
            s.add("LNT402", node)


def environment_after_init(s: Syntax) -> None:
    """Variables that are read when the group is made, set after that in the same function."""
    made = {function: node.lineno for function, node in reversed(list(s.of(*_INIT)))}
    for function, node, name, _ in s.environment:
        line = made.get(function)
        if line is not None and getattr(node, "lineno", 0) > line and name.startswith(_BOUND_AT_INIT):
            s.add("LNT403", node, name=name, line=str(line))


def visible_devices(s: Syntax) -> None:
    """CUDA_VISIBLE_DEVICES made from the rank, inside the rank."""
    for _, node, name, value in s.environment:
        if name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") and any(_is_rank(n) for n in ast.walk(value)):
            s.add("LNT406", node, name=name)


def _is_rank(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value if node.value.isidentifier() else ""
    return known.rank_kind(name.lower()) in ("rank", "local")


def device_after_init(s: Syntax) -> None:
    """The device is chosen after the first call that has already used one."""
    uses: dict[int, tuple[int, str]] = {}
    for full, calls in s.calls.items():
        if full in _DDP or (
            known.collective(full) is not None and not full.endswith(("_group", "_object", "_object_list"))
        ):
            for function, node in calls:
                uses[function] = min(uses.get(function, (1 << 30, "")), (node.lineno, full.rpartition(".")[2]))
    first: dict[int, ast.Call] = {}
    for function, node in s.of("torch.cuda.set_device"):
        if function not in first or node.lineno < first[function].lineno:
            first[function] = node
    for function, node in first.items():
        if function in uses and uses[function][0] < node.lineno:
            s.add("LNT405", node, call=uses[function][1], line=str(uses[function][0]))


def device_not_chosen(s: Syntax) -> None:
    """NCCL is initialised, modules go to `.cuda()` without a number, and no line of the file chooses the device of the rank."""
    nccl = [n for _, n in s.of(*_INIT) if _text(argument(n, "backend", 0)) == "nccl"]
    if not nccl or any(argument(n, "device_id") is not None for n in nccl):
        return
    if any(name in s.calls for name in _SET_DEVICE) or any(
        name == "CUDA_VISIBLE_DEVICES" for _, _, name, _ in s.environment
    ):
        return
    for full, calls in s.calls.items():
        for _, node in calls:
            is_plain = full.endswith(".cuda") and not node.args and not node.keywords
            is_to = full.endswith(".to") and len(node.args) == 1 and _text(node.args[0]) == "cuda"
            if is_plain or is_to:
                s.add("LNT407", node)
                return


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def load_to_saved_device(s: Syntax) -> None:
    """`torch.load` without `map_location` where ranks run: all of them load to the device of the one that saved."""
    if not any(full in s.calls for full in (*_INIT, *_DDP)):
        return
    for _, node in s.of("torch.load"):
        if argument(node, "map_location", 1) is None and not has_stars(node):
            at = s.span(node)[1] - 1
            s.add("LNT408", node, [(at, at, ', map_location="cpu"')] if node.args else [])


def timeouts_in_order(s: Syntax) -> None:
    """A loader that may wait as long as the group does: the group gives up first, and its message names a collective."""
    limits = [t for _, n in s.of(*_INIT) if (t := seconds(argument(n, "timeout", 3), s)) is not None]
    group = limits[0] if limits else None
    nccl = any(_text(argument(n, "backend", 0)) == "nccl" for _, n in s.of(*_INIT))
    group = group if group is not None else 600.0 if nccl else None
    for _, node in s.of(*_DATA_LOADER):
        limit = argument(node, "timeout")
        if (
            group is not None
            and isinstance(limit, ast.Constant)
            and isinstance(limit.value, int | float)
            and limit.value >= group
        ):
            s.add("LNT306", node, loader=f"{limit.value:g}", group=f"{group:g}")


def seconds(node: ast.expr | None, s: Syntax) -> float | None:
    """The seconds of `timedelta(minutes=10)`; None: they are not written out."""
    if not isinstance(node, ast.Call) or s.full(node.func).rpartition(".")[2] != "timedelta":
        return None
    units = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "milliseconds": 0.001}
    total = 0.0
    for keyword in node.keywords:
        if (
            keyword.arg not in units
            or not isinstance(keyword.value, ast.Constant)
            or not isinstance(keyword.value.value, int | float)
        ):
            return None
        total += units[keyword.arg] * keyword.value.value
    return total if not node.args else None


def sampler_without_epoch(s: Syntax) -> None:
    """A shuffling DistributedSampler whose epoch nobody sets."""
    if any(full.endswith(".set_epoch") for full in s.calls):
        return
    for _, node in s.of(*_SAMPLER):
        shuffle = argument(node, "shuffle", 3)
        if shuffle is None or is_true(shuffle):
            s.add("LNT301", node)


def reentrant_checkpoint(s: Syntax) -> None:
    """Re-entrant checkpointing in a file whose DDP looks for unused parameters, or has a static graph to be told of."""
    wraps = [n for _, n in s.of(*_DDP) if is_true(argument(n, "find_unused_parameters"))]
    if not wraps:
        return
    for _, node in s.of(*_CHECKPOINT):
        keyword = keyword_of(node, "use_reentrant")
        if not has_stars(node) and (keyword is None or is_true(keyword.value)):
            edits = [] if keyword is None else [(*s.span(keyword.value), "False")]
            s.add("LNT413", node, edits, line=str(wraps[0].lineno))


def main_without_record(s: Syntax) -> None:
    """A script under torchrun whose traceback is not recorded."""
    if any(full.endswith(".record") for full in s.calls) or "record" in s.names:
        return
    for _, node in s.of(*_INIT):
        s.add("LNT208", node)
        return


def redundant_broadcast(s: Syntax) -> None:
    """A loop that broadcasts the parameters of a module which DDP then wraps."""
    wrapped = {(function, ast.dump(n.args[0])): n.lineno for function, n in s.of(*_DDP) if n.args}
    for function, loop in s.loops:
        of = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        if not isinstance(of, ast.Attribute) or of.attr not in ("parameters", "buffers"):
            continue
        line = wrapped.get((function, ast.dump(of.value)))
        calls = [n for b in loop.body for n in ast.walk(b) if isinstance(n, ast.Call)]
        if line is not None and line > loop.lineno and any(_is_broadcast(s.full(n.func)) for n in calls):
            s.add("LNT409", loop, line=str(line))


def _is_broadcast(full: str) -> bool:
    made = known.collective(full)
    return made is not None and made.op == "broadcast"


def settings(s: Syntax) -> None:
    """What `unhang env` calls wrong in the variables that the file sets."""
    if not any(name.startswith(("NCCL_", "TORCH_", "GLOO_", "CUDA_")) for _, _, name, _ in s.environment):
        return
    from unhang.model.findings import WRONG
    from unhang.read.environment.python_code import read_python
    from unhang.rules.env import judge_settings

    lines = {getattr(node, "lineno", 0): node for _, node, _, _ in s.environment}
    for finding in judge_settings([read_python(s.data.decode("utf-8", "replace"))]).findings:
        node = lines.get(finding.location.line) if finding.location else None
        if finding.confidence >= WRONG and node is not None:
            s.add(
                "LNT404", node, title=finding.title, fix=finding.fixes[0].title if finding.fixes else "see unhang env"
            )


def forked(s: Syntax) -> None:
    """`fork` as the way to start processes, beside a process group."""
    if not any(full in s.calls for full in (*_INIT, *_DDP)):
        return
    for full, calls in s.calls.items():
        name = full.rpartition(".")[2]
        for _, node in calls:
            way = argument(node, "method", 0) if name in ("set_start_method", "get_context") else None
            way = argument(node, "multiprocessing_context") if full in _DATA_LOADER else way
            if _text(way) == "fork":
                s.add("LNT412", node)


def uneven_batches(s: Syntax) -> None:
    """A training loader without a sampler, in a file that wraps a module."""
    if not any(full in s.calls for full in _DDP):
        return
    for _, node in s.of(*_DATA_LOADER):
        given = [argument(node, name) for name in ("sampler", "batch_sampler")]
        if (
            not any(given)
            and not has_stars(node)
            and is_true(argument(node, "shuffle"))
            and not is_true(argument(node, "drop_last"))
        ):
            s.add("LNT302", node)


def chance_in_forward(s: Syntax) -> None:
    """A layer that runs by chance."""
    for node in s.chances:
        draws = any(isinstance(n, ast.Call) and s.full(n.func) in _CHANCE for n in ast.walk(node.test))
        if draws and any(
            isinstance(n, ast.Call) and s.full(n.func).startswith("self.") for b in node.body for n in ast.walk(b)
        ):
            s.add("LNT414", node)


_RULES: tuple[Callable[[Syntax], None], ...] = (
    async_never_waited, retained_graph, anomaly_detection, init_without_timeout, environment_after_init, visible_devices,
    device_after_init, device_not_chosen, load_to_saved_device, timeouts_in_order, sampler_without_epoch, reentrant_checkpoint,
    main_without_record, redundant_broadcast, settings, forked, uneven_batches, chance_in_forward,
)  # fmt: skip
_WATCHED = {
    *(
        "backward",
        "set_detect_anomaly",
        "init_process_group",
        "setdefault",
        "putenv",
        "set_device",
        "set_device_index",
        "device",
        "cuda",
    ),
    *(
        "to",
        "load",
        "DataLoader",
        "DistributedSampler",
        "set_epoch",
        "checkpoint",
        "checkpoint_sequential",
        "record",
        "parameters",
    ),
    *(
        "DistributedDataParallel",
        "DDP",
        "all_reduce",
        "broadcast",
        "barrier",
        "all_gather",
        "all_gather_into_tensor",
        "reduce",
    ),
    *(
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "gather",
        "scatter",
        "all_gather_object",
    ),
    *("broadcast_object_list", "monitored_barrier", "set_start_method", "get_context"),
}
