"""Which tensors of a model should be equal on all ranks, and which differ by nature."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

NOT_COMPARED = {
    "sharded": "each rank holds its own part",
    "local": "of BatchNorm, each rank has the statistics of its own batches",
    "copied": "DDP copies them from rank 0 before every forward, which may change them",
    "unusual": "without data of their own (lazy, meta, sparse or quantized)",
}


def replicated(model: Any, what: Iterable[str]) -> tuple[list[tuple[str, Any]], dict[str, list[str]]]:
    """The tensors that should be equal on all ranks, by name, and the names of the others by the reason."""
    kinds, sharded, local, copied = set(what), *_special(model)
    compared: list[tuple[str, Any]] = []
    left_out: dict[str, list[str]] = {}
    for is_buffer, name, tensor in _tensors(model, kinds):
        own = _whole(tensor)
        if id(tensor) in sharded or own is None:
            reason = "sharded"
        elif is_buffer and id(tensor) in local:
            reason = "local"
        elif is_buffer and id(tensor) in copied:
            reason = "copied"
        elif not _has_bits(own):
            reason = "unusual"
        else:
            compared.append((name, own))
            continue
        left_out.setdefault(reason, []).append(name)
    return compared, left_out


def _tensors(model: Any, kinds: set[str]) -> Iterator[tuple[bool, str, Any]]:
    """Whether it is a buffer, its name without what wrappers add, and the tensor."""
    for is_buffer, kind, named in (
        (False, "parameters", model.named_parameters()),
        (True, "buffers", model.named_buffers()),
    ):
        if kind in kinds:
            for name, tensor in named:
                yield is_buffer, name.removeprefix("module.").replace("_orig_mod.", ""), tensor


def _special(model: Any) -> tuple[set[int], set[int], set[int]]:
    """By id: parameters that FSDP shards, BatchNorm's local statistics, buffers that DDP copies in every forward."""
    import torch

    sharded: set[int] = set()
    local: set[int] = set()
    copied: set[int] = set()
    for module in model.modules():
        kind = type(module).__name__
        if kind == "FullyShardedDataParallel" and "NO_SHARD" not in str(getattr(module, "sharding_strategy", "")):
            sharded.update(map(id, (*module.parameters(), *module.buffers())))
        elif kind == "DistributedDataParallel":
            own = module.__dict__
            if own.get("forward_sync_buffers", own.get("broadcast_buffers", True)):
                copied.update(map(id, module.buffers()))
            ignored = own.get("parameters_to_ignore") or ()
            sharded.update(id(t) for n, t in (*module.named_parameters(), *module.named_buffers()) if n[7:] in ignored)
        elif isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and kind != "SyncBatchNorm":
            local.update(id(b) for b in (module.running_mean, module.running_var) if b is not None)
    return sharded, local, copied


def _whole(tensor: Any) -> Any:
    """The tensor as this rank holds it, or None where it holds only a part: a DTensor's shard, a part of ZeRO stage 3."""
    if hasattr(tensor, "ds_id") or type(tensor).__name__ == "FlatParameter":
        return None
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor
    import torch.distributed as dist

    is_everywhere = all(p.is_replicate() for p in placements) and tensor.device_mesh.size() == dist.get_world_size()
    return tensor.to_local() if is_everywhere else None


def _has_bits(tensor: Any) -> bool:
    import torch

    is_lazy = isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
    return not is_lazy and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized


def cannot_compare(model: Any, world_size: int) -> str:
    """Why this model is not compared; empty where it is."""
    import torch.distributed as dist

    for module in model.modules():
        group = getattr(module, "process_group", None) if type(module).__name__ == "DistributedDataParallel" else None
        with suppress(Exception):
            if group is not None and dist.get_world_size(group) != world_size:
                return "its replicas are on a part of the ranks only"
    return ""


def layout_of(names: Sequence[str], tensors: Sequence[Any]) -> int:
    """A number that is equal where names, shapes and dtypes are."""
    text = "\n".join(f"{n} {tuple(t.shape)} {t.dtype}" for n, t in zip(names, tensors, strict=True))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
