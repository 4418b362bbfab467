"""Facts about the program that nobody sees from outside, a few lines each in facts.jsonl: tensors whose memory a collective misreads, loaders, the model's shapes.

Each is noted where it is made; what repeats itself is noted a few times at each place. No code of the program's own is called, but for the length
of a dataset, which its loader asks for as well.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import recording
from .flight import reductions
from .frames import caller_of_torch, is_user, record_text, user_places
from .recording import Recording, append_json, attempt, do_not_trace, failed_in_torch, preceded, step_aside, write_json

# What gloo reads and writes from the tensor's first element on, as many elements as it has; what it gathers it copies in order.
_IN_PLACE = ("allreduce", "broadcast", "reduce", "scatter")
_INTO_LISTS = ("allgather", "gather", "alltoall")
# Those of the methods that also have an operation or a root, and further ones of which that alone is noted.
_REDUCED = ("allreduce", "broadcast", "reduce", "scatter", "gather")
_REDUCED_ONLY = (
    *("allreduce_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
)
_PLAIN = frozenset(("Tensor", "Parameter"))
_OF_A_PLACE, _MOST, _MOST_PLACES, _DEEPEST, _MOST_DIMENSIONS = 3, 64, 256, 40, 16
_MOST_TENSORS = 20_000
_SENT = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "TORCH_DISTRIBUTED_")
_noted: dict[int, int] = {}
_places: dict[tuple[str, int, int], tuple[int, object]] = {}
_loaders: weakref.WeakSet[Any] = weakref.WeakSet()
_ends: dict[tuple[int, int], tuple[int | None, object]] = {}


def note(rec: Recording, kind: str, fields: dict[str, Any], place: Sequence[object] | None = None) -> None:
    """Append one fact; after `_MOST` of this process no more are kept."""
    count = _noted.get(rec.pid, 0)
    if count < _MOST:
        _noted[rec.pid] = count + 1
        append_json(rec.path("facts.jsonl"), {"kind": kind, "fields": fields, "at": place})


# Tensors


def watch_tensors(c10d: Any, bindings: Any) -> None:
    """Look at the tensors of each collective that Python asks for, where it leaves Python: DDP's own calls do not pass here.

    A tensor in one piece costs a third of a microsecond.
    """
    for name in _IN_PLACE:
        _wrap(c10d, bindings.ProcessGroup, name, _odd_tensor)
    for name in _INTO_LISTS:
        _wrap(c10d, bindings.ProcessGroup, name, _aliased)
    for name in _REDUCED_ONLY:
        _wrap(c10d, bindings.ProcessGroup, name, lambda _: None)


def _wrap(c10d: Any, kind: Any, name: str, odd: Callable[[Any], Any]) -> None:
    original = vars(kind).get(name)
    if original is None:
        return
    is_reduced = name in _REDUCED or name in _REDUCED_ONLY

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        rec, row = recording.current, None
        if rec is not None and args:
            try:
                if (found := odd(args[0])) is not None:
                    _note_tensor(rec, c10d, self, name, found)
                row = reductions.begin(self, args, kwargs) if is_reduced else None
            except Exception as error:  # noqa: BLE001
                rec.note("tensors of collectives", f"{type(error).__name__}: {error}")
        try:
            work = original(self, *args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            reductions.end(row)
        reductions.follow(row, work)
        return work

    # pybind11 knows by the function's name that a Python subclass calls the method of its base class.
    call.__code__ = call.__code__.replace(co_name=name)
    setattr(kind, name, do_not_trace(functools.wraps(original)(call)))


def _odd_tensor(given: Any) -> Any:
    for tensor in given if type(given) is list else (given,):
        if type(tensor).__name__ in _PLAIN and not tensor.is_contiguous():
            return tensor
    return None


def _aliased(given: Any) -> Any:
    """The first of several tensors that are to be written and begin at one address; a view of nothing begins where its neighbour does."""
    if type(given) is not list or not given:
        return None
    tensors = given[0] if type(given[0]) is list else given
    if len(tensors) < 2 or type(tensors[0]).__name__ not in _PLAIN or type(tensors[-1]).__name__ not in _PLAIN:
        return None
    first, last = tensors[0], tensors[-1]
    return first if first.data_ptr() == last.data_ptr() and first.numel() and last.numel() else None


def _note_tensor(rec: Recording, c10d: Any, group: Any, name: str, tensor: Any) -> None:
    if not _is_new_here(name) or group.size() < 2:
        return
    sizes, strides = list(tensor.size())[:_MOST_DIMENSIONS], list(tensor.stride())[:_MOST_DIMENSIONS]
    fields = {
        "op": name,
        "group": str(c10d._world.pg_names.get(group, "")),
        "seq": attempt("number of a collective", lambda: int(group._get_sequence_number_for_group()) + 1),
        "layout": "alias" if name in _INTO_LISTS else layout_of(sizes, strides),
        "sizes": sizes,
        "strides": strides,
        "device": tensor.device.type,
        "backend": attempt("backend of a group", lambda: str(group._get_backend(tensor.device).name())) or "",
    }
    note(rec, "tensor", fields, next(iter(user_places(1)), None))


def layout_of(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """`overlap`: elements share memory; `gaps`: other memory lies between them; `permuted`: one piece in another order."""
    expected, found = 1, "permuted"
    for stride, size in sorted((strides[i], n) for i, n in enumerate(sizes) if n > 1):
        if stride < expected:
            return "overlap"
        if stride > expected:
            found = "gaps"
        expected = stride * size
    return found


def _is_new_here(name: str) -> bool:
    """Whether this is one of the first such calls at the user's line: each costs some microseconds."""
    at: Any = sys._getframe(3)
    depth = _DEEPEST
    while at.f_back is not None and depth and not is_user(at.f_code.co_filename):
        at, depth = at.f_back, depth - 1
    key = (name, id(at.f_code), at.f_lasti)
    count, _ = _places.get(key, (0, None))
    if count >= _OF_A_PLACE or (not count and len(_places) >= _MOST_PLACES):
        return False
    _places[key] = (count + 1, at.f_code)  # kept alive, so that its id comes to mean no other one
    return True


# Groups, errors


def note_group(rec: Recording, c10d: Any, given: dict[str, Any]) -> None:
    """Note a group that its members alone have made."""
    if given.get("use_local_synchronization"):
        world = c10d.GroupMember.WORLD
        is_bound = getattr(world, "bound_device_id", None) is not None
        fields = {"bound": is_bound, "backend": str(c10d.get_backend(world))}
        note(rec, "group", fields, next(iter(user_places(1)), None))


def note_uncaught(rec: Recording) -> None:
    """Note whether torchrun has been told of an exception that nobody caught: `@record` has done so before any hook is called."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if path:
        size = os.stat(path).st_size if os.path.exists(path) else None
        file = "absent" if size is None else "written" if size else "empty"
        note(rec, "uncaught", {"told": bool(size), "file": file})


def settings_now() -> dict[str, str]:
    """The variables of this process that its ranks are to have: of a driver that starts them elsewhere."""
    return {name: value for name, value in os.environ.items() if name.startswith(_SENT)}


def note_settings(given: dict[str, str]) -> None:
    """Note which of the driver's variables this rank does not have."""
    rec, lost = recording.current, sorted(name for name in given if name not in os.environ)
    if rec is not None and lost:
        note(rec, "settings", {"lost": ", ".join(lost[:8])})


# Loaders


def watch_loader(rec: Recording, loader: Any) -> None:
    """Note a loader when an iterator of it is made for the first time."""
    try:
        if loader not in _loaders:
            _loaders.add(loader)
            note(rec, "loader", _loader(loader), next(iter(user_places(1)), None))
    except Exception as error:  # noqa: BLE001
        rec.note("loader", f"{type(error).__name__}: {error}")


def _loader(loader: Any) -> dict[str, Any]:
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    found: dict[str, Any] = {
        "workers": int(loader.num_workers),
        "timeout_s": float(loader.timeout),
        "batch_size": loader.batch_size,
        "drop_last": bool(loader.drop_last),
        "sampler": type(sampler).__name__,
        "ends": True,  # they are noted
    }
    if getattr(loader, "_dataset_kind", 1) != 0:  # the length of an iterable dataset must not be asked for
        return found
    dataset = loader.dataset
    found["samples"] = attempt("length of a dataset", len, dataset)
    if _is_torchs(sampler):
        found["of_rank"] = attempt("length of a sampler", len, sampler)
        found["batches"] = attempt("number of batches", len, batches) if _is_torchs(batches) else None
        found["replicas"] = getattr(sampler, "num_replicas", None)
    if type(dataset).__name__ == "Subset" and _is_torchs(dataset):
        found |= attempt("part of a dataset", _subset, dataset) or {}
    return found


def _is_torchs(value: Any) -> bool:
    return type(value).__module__.startswith("torch.utils.data")


def _subset(dataset: Any) -> dict[str, Any]:
    """What a `Subset` is of a larger dataset: that one's length, and the first and last index of a range without gaps."""
    chosen = dataset.indices
    if type(chosen) not in (range, list) or not chosen or chosen[-1] - chosen[0] != len(chosen) - 1:
        return {}
    return {"base": len(dataset.dataset), "first": int(chosen[0]), "last": int(chosen[-1])}


def watch_end(original: Any) -> Any:
    """Note when an iterator of a loader has no more: it tells a loop whose data ran out from one that was left."""

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        try:
            return original(self)
        except BaseException as error:
            step_aside(error)
            if isinstance(error, StopIteration) and recording.current is not None:
                attempt("end of a loader", _note_end, recording.current, self)
            raise

    return do_not_trace(__next__)


def _note_end(rec: Recording, iterator: Any) -> None:
    """Keep the last end at each place where a loader is asked for its batches, with their number."""
    at: Any = sys._getframe(3)
    key = (id(at.f_code), at.f_lasti)
    if key in _ends or len(_ends) < _MOST_PLACES:
        number, code = _ends.get(key, (None, at.f_code))
        text = record_text("", str(int(iterator._num_yielded)))
        count = rec.count(recording.LOADER_END, str(key))
        _ends[key] = rec.page.note(number, recording.LOADER_END, count, text), code  # kept alive, see `_places`


def forget_in_child() -> None:
    """After a fork: the page with these records is the parent's."""
    _ends.clear()


def count_batch(rec: Recording, batch: Any) -> None:
    """Count samples and tokens: the first dimension of the first tensor, and the elements of the first one of whole numbers in rows.

    A microsecond for each batch.
    """
    samples = tokens = 0
    try:
        for value in _values(batch):
            if type(value).__name__ in _PLAIN and value.dim():
                samples = samples or value.shape[0]
                if value.dim() == 2 and not (value.is_floating_point() or value.is_complex()):
                    tokens = value.numel()
                    break
        rec.page.count_batch(samples, tokens)
    except Exception as error:  # noqa: BLE001
        rec.note("size of a batch", f"{type(error).__name__}: {error}")


def _values(batch: Any) -> Sequence[Any]:
    if isinstance(batch, (list, tuple)):
        return batch[:4]
    # A tokenizer's BatchEncoding keeps a dict in `data`.
    inner = batch if type(batch) is dict else getattr(batch, "data", None)
    return list(inner.values())[:4] if type(inner) is dict else (batch,)


# Shapes


def watch_wrapper(name: str, module: Any) -> None:
    """Note the shapes of a model's parameters when it is wrapped by this class."""
    kind = getattr(module, name)
    kind.__init__ = preceded(kind.__init__, lambda _, *args, **kwargs: _see_model(*args, **kwargs))


def watch_fully_shard(module: Any) -> None:
    """The same for FSDP2: the outermost module comes last, and is the one that is kept."""
    module.fully_shard = preceded(module.fully_shard, _see_model)


def _see_model(*args: Any, **kwargs: Any) -> None:
    model = args[0] if args else kwargs.get("module")
    if model is not None:
        attempt("shapes.json", _write_shapes, model)


def _write_shapes(model: Any) -> None:
    """The largest model that is wrapped: its parts are wrapped before it."""
    rec = recording.current
    if rec is None:
        return
    shapes = {}
    for name, parameter in model.named_parameters():
        shapes[name] = list(parameter.shape)
        if len(shapes) >= _MOST_TENSORS:
            break
    if len(shapes) > len(rec.shapes):
        rec.shapes = shapes
        write_json(rec.path("shapes.json"), shapes)


def describe_group(c10d: Any, group: Any, name: str, timeout: Any) -> dict[str, Any]:
    """The line of groups.jsonl for one group. `timeout`: as its maker gave it."""
    backend = attempt("backend of a group", lambda: str(c10d._world.pg_map[group][0])) or ""
    return {
        "pg_name": str(name),
        "pg_desc": attempt("name of a group", lambda: str(group.group_desc)) or "",
        "ranks": attempt("ranks of a group", c10d.get_process_group_ranks, group) or [],
        "timeout_s": attempt("timeout of a group", _timeout_s, c10d, backend, timeout),
        "timeout_set_at": None if timeout is None else attempt("who set a timeout", caller_of_torch),
        "backend": backend,
        "created_ns": time.time_ns(),
    }


def _timeout_s(c10d: Any, backend: str, timeout: Any) -> float | None:
    if timeout is None:
        timeout = c10d._get_default_timeout(c10d.Backend(backend))
    return float(timeout.total_seconds())
