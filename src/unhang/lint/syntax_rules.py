"""Rules that need no more than the lines of one file: settings, devices, leftovers."""

from __future__ import annotations

import ast
from collections.abc import Callable

from unhang.lint import known
from unhang.lint.syntax import Syntax, argument, has_stars, is_true, keyword_of

_INIT = {"torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"}
_BOUND_AT_INIT = ("NCCL_", "TORCH_NCCL_", "GLOO_", "MASTER_", "TORCH_DISTRIBUTED_DEBUG", "TORCH_FR_")
_SET_DEVICE = {"torch.cuda.set_device", "torch.accelerator.set_device_index", "torch.cuda.device"}
_DATA_LOADER = {"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"}
_SAMPLER = {"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"}
_CHECKPOINT = {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}
_INIT_RPC = ("torch.distributed.rpc.init_rpc", "rpc.init_rpc")
_DDP = {name for name, sort in known.WRAPPERS.items() if sort == "ddp"}


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
    """`backward(retain_graph=True)` in a function with one backward pass, of what is computed in the same round of the loop."""
    for nodes in s.backwards.values():
        node = nodes[0]
        keyword = keyword_of(node, "retain_graph")
        if (
            len(nodes) == 1
            and keyword is not None
            and is_true(keyword.value)
            and keyword_of(node, "create_graph") is None
            and _is_made_in(s.of_loop.get(id(node)), node)
        ):
            s.add("LNT410", node, s.without(node, keyword))


def _is_made_in(round_: ast.AST | None, node: ast.Call) -> bool:
    """Whether the loss of this backward pass comes from the same round, so that no later one can share its graph."""
    loss = node.func.value if isinstance(node.func, ast.Attribute) else None
    if round_ is None or isinstance(loss, ast.Call | ast.BinOp):
        return round_ is None or loss is not None
    name = ast.dump(loss) if loss is not None else ""
    for one in ast.walk(round_):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AugAssign) else []
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            if any(ast.dump(p).replace("Store", "Load") == name for p in parts):
                return True
    return False


def anomaly_detection(s: Syntax) -> None:
    """Anomaly detection that is always on."""
    names = (
        "torch.autograd.set_detect_anomaly",
        "torch.autograd.anomaly_mode.set_detect_anomaly",
        "torch.set_detect_anomaly",
    )
    for _, node in s.of(*names):
        mode = argument(node, "mode", 0)
        if is_true(mode) and mode is not None and id(node) in s.certain:
            s.add("LNT411", node, [(*s.span(mode), "False")], False)


def init_without_timeout(s: Syntax) -> None:
    """The limit of collectives is left to the default of the backend."""
    for _, node in s.of(*_INIT):
        if argument(node, "timeout", 3) is None and not has_stars(node):
            s.add("LNT402", node)


def environment_after_init(s: Syntax) -> None:
    """Variables that are read when the group is made, set after that in the same function."""
    for function, node, name, _ in s.environment:
        made = next((n for f, n in s.of(*_INIT) if f == function and s.comes_before(n, node)), None)
        again = any(f == function and s.comes_before(node, n) for f, n in s.of(*_INIT, *_INIT_RPC))
        is_given = made is not None and name.startswith("MASTER_") and argument(made, "init_method", 1) is not None
        if made is not None and not again and not is_given and name.startswith(_BOUND_AT_INIT):
            s.add("LNT403", node, name=name, line=str(made.lineno))


def visible_devices(s: Syntax) -> None:
    """CUDA_VISIBLE_DEVICES made from the rank, inside the rank."""
    if b"distributed" not in s.data:
        return
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
    uses = [
        (function, node, full.rpartition(".")[2])
        for full, calls in s.calls.items()
        if full in _DDP
        or (known.collective(full) is not None and not full.endswith(("_group", "_object", "_object_list")))
        for function, node in calls
    ]
    first: dict[int, ast.Call] = {}
    for function, node in s.of("torch.cuda.set_device"):
        first.setdefault(function, node)
    for function, node in first.items():
        used = next(((n, name) for f, n, name in uses if f == function and s.comes_before(n, node)), None)
        if used is not None:
            s.add("LNT405", node, call=used[1], line=str(used[0].lineno))


def device_not_chosen(s: Syntax) -> None:
    """NCCL is initialised, modules go to `.cuda()` without a number, and no line of the file chooses the device of the rank."""
    nccl = {f: n for f, n in s.of(*_INIT) if _text(argument(n, "backend", 0)) == "nccl"}
    if not nccl or any(argument(n, "device_id") is not None for n in nccl.values()):
        return
    if any(name in s.calls for name in _SET_DEVICE) or any(
        name == "CUDA_VISIBLE_DEVICES" for _, _, name, _ in s.environment
    ):
        return
    for full, calls in s.calls.items():
        for function, node in calls:
            if function not in nccl or not s.comes_before(nccl[function], node):
                continue
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
    """A loop that broadcasts the parameters of a module which DDP then wraps. Without it DDP does the same, if it stands in the same block."""
    wrapped = {(function, ast.dump(n.args[0])): n for function, n in s.of(*_DDP) if n.args}
    for function, loop in s.loops:
        of = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        if not isinstance(of, ast.Attribute) or of.attr not in ("parameters", "buffers"):
            continue
        wrap = wrapped.get((function, ast.dump(of.value)))
        calls = [n for b in loop.body for n in ast.walk(b) if isinstance(n, ast.Call)]
        if wrap is None or wrap.lineno <= loop.lineno or not any(_is_broadcast(s.full(n.func)) for n in calls):
            continue
        if not s.comes_before(loop, wrap):
            continue
        is_all = len(loop.body) == 1 and isinstance(loop.body[0], ast.Expr) and not loop.orelse and len(calls) == 1
        is_from_first = (
            is_all and len(calls[0].args) + len(calls[0].keywords) == 2 and _is_zero(argument(calls[0], "src", 1))
        )
        is_safe = of.attr == "parameters" and not wrap.keywords and s.are_together(loop, wrap)
        s.add("LNT409", loop, s.without_lines(loop) if is_from_first else [], is_safe, line=str(wrap.lineno))


def _is_zero(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_broadcast(full: str) -> bool:
    made = known.collective(full)
    return made is not None and made.op == "broadcast"


def settings(s: Syntax) -> None:
    """What `unhang env` calls wrong in the variables that the file sets."""
    if not any(name.startswith(("NCCL_", "TORCH_", "GLOO_", "CUDA_")) for _, _, name, _ in s.environment):
        return
    from unhang.model.findings import WRONG
    from unhang.read.environment.sources import read_python
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
            if way is not None and _text(way) == "fork":
                s.add("LNT412", node, [(*s.span(way), '"spawn"')])


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
            at = s.span(node)[1] - 1
            is_plain = bool(node.args or node.keywords) and s.data[:at].rstrip()[-1:] != b","
            s.add(
                "LNT302",
                node,
                [(at, at, ", drop_last=True")] if is_plain and argument(node, "drop_last") is None else [],
            )


RULES: tuple[Callable[[Syntax], None], ...] = (
    async_never_waited, retained_graph, anomaly_detection, init_without_timeout, environment_after_init, visible_devices,
    device_after_init, device_not_chosen, load_to_saved_device, timeouts_in_order, sampler_without_epoch, reentrant_checkpoint,
    main_without_record, redundant_broadcast, settings, forked, uneven_batches,
)  # fmt: skip
