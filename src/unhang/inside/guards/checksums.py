"""Checksums of tensors over their raw bits: equal bits, equal number, on every rank and every device.

Order-sensitive, for any dtype of whole bytes, and blind to what the bits mean: NaN equals NaN, and 0.0 is not -0.0.
The words of a tensor are multiplied with fixed pseudo-random 64-bit keys, one per position, and summed modulo 2^64: two
tensors that differ have the same sum with a chance of about 2^-33.

Source: multilinear hashing of strings, Lemire and Kaser, "Strongly universal string hashing is fast", 2014.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
_ROW_WORDS = 4096
# Rows at a time. On a CPU the products stay in the cache, and below the size from which torch asks its threads for help,
# which costs more than it brings here. On a GPU they stay small beside its memory.
_CPU_ROWS, _DEVICE_ROWS = 7, 1024

_keys: dict[Any, Any] = {}


def checksum(tensor: Any) -> int:
    """The checksum of one tensor. Blocks: until its device has computed it."""
    return int(checksums([tensor])[0])


def checksums(tensors: Sequence[Any]) -> Any:
    """One int64 per tensor, as a tensor on their device (on the CPU where they lie on several).

    Blocks: never for the device; the result is there when the device comes to it.
    """
    torch: Any = sys.modules["torch"]
    room: dict[Any, Any] = {}
    with torch.no_grad():
        rows = [_row_sums(tensor, room) for tensor in tensors]
        if len({row.device for row in rows}) > 1:
            rows = [row.cpu() for row in rows]
        if not rows:
            return torch.zeros(0, dtype=torch.int64)
        sums = torch.cat(rows)
        counts = torch.tensor([len(row) for row in rows])
        owners = torch.repeat_interleave(torch.arange(len(rows)), counts)
        places = torch.arange(len(sums)) - (counts.cumsum(0) - counts)[owners]
        # Of bytes, not of elements or words: zeros of another length are another tensor.
        lengths = torch.tensor([tensor.numel() * tensor.element_size() for tensor in tensors])
        # Copied without waiting: a plain copy to a GPU waits for all that it has still to do.
        owners, places, lengths = (t.to(sums.device, non_blocking=True) for t in (owners, places, lengths))
        of_tensors = torch.zeros(len(rows), dtype=torch.int64, device=sums.device)
        of_tensors.index_add_(0, owners, _scrambled(sums + places * _GOLDEN))
        return _scrambled(of_tensors + lengths * _GOLDEN)


def total(sums: Any) -> Any:
    """One number for many, in their order: a tensor without dimensions, on the same device."""
    torch: Any = sys.modules["torch"]
    positions = torch.arange(1, len(sums) + 1, dtype=torch.int64, device=sums.device)
    return _scrambled(sums + positions * _GOLDEN).sum()


def fetched(sums: Any) -> tuple[Callable[[], bool], Any]:
    """The numbers on the CPU, and the question whether they have arrived there; does not wait for the device."""
    if sums.device.type == "cpu":
        return (lambda: True), sums
    torch: Any = sys.modules["torch"]
    if sums.device.type != "cuda":
        return (lambda: True), sums.cpu()
    here = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
    here.copy_(sums, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(sums.device))
    return event.query, here


def _row_sums(tensor: Any, room: dict[Any, Any]) -> Any:
    """The sums of words times keys, one for each row of _ROW_WORDS words. `room`: memory for some rows, by device, used again."""
    torch: Any = sys.modules["torch"]
    words = _words(tensor)
    device, keys = words.device, _keys_on(words.device)
    if len(words) <= _ROW_WORDS:
        return (words * keys[: len(words)]).sum().reshape(1)
    whole = len(words) // _ROW_WORDS
    rows = words[: whole * _ROW_WORDS].view(whole, _ROW_WORDS)
    is_cpu = device.type == "cpu"
    block = _CPU_ROWS if is_cpu else _DEVICE_ROWS
    if device not in room or len(room[device]) < min(block, whole):
        room[device] = torch.empty((min(block, whole), _ROW_WORDS), dtype=torch.int64, device=device)
    sums = []
    for part in rows.split(block):
        wide = room[device][: len(part)]
        if is_cpu:
            # Widened and then multiplied and added in one go: less than with the products in memory. Not there for GPUs.
            sums.append(torch.mv(wide.copy_(part), keys))
        else:
            sums.append(torch.mul(part, keys, out=wide).sum(1))
    rest = words[whole * _ROW_WORDS :]
    if len(rest):
        sums.append((rest * keys[: len(rest)]).sum().reshape(1))
    return torch.cat(sums)


def _words(tensor: Any) -> Any:
    """The bits as a row of int32, the last one filled up with zeros."""
    torch: Any = sys.modules["torch"]
    # The bits of a lazily conjugated or negated tensor are not yet what it holds.
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if whole.numel() == 0:
        return torch.zeros(0, dtype=torch.int32, device=whole.device)
    octets = whole.view(torch.uint8)
    missing = -len(octets) % 4
    if missing:
        return torch.cat([octets, octets.new_zeros(missing)]).view(torch.int32)
    # A view into a larger buffer may begin between two words.
    return (octets.clone() if octets.storage_offset() % 4 else octets).view(torch.int32)


def _keys_on(device: Any) -> Any:
    if device not in _keys:
        torch: Any = sys.modules["torch"]
        places = torch.arange(1, _ROW_WORDS + 1, dtype=torch.int64)
        _keys[device] = _scrambled(places * _GOLDEN).to(device)
    return _keys[device]


def _scrambled(numbers: Any) -> Any:
    """Each bit of the result depends on each bit of the number (the finish of splitmix64)."""
    for shift, factor in _MIX:
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Any, shift: int) -> Any:
    """A shift to the right that brings zeros in: int64 alone would bring copies of the sign."""
    return (numbers >> shift) & ((1 << (64 - shift)) - 1)


class Cost(NamedTuple):
    """What checksums of a model of this size cost on this device."""

    device: str
    tensors: int
    size_bytes: int
    seconds: float

    def __str__(self) -> str:
        rate = self.size_bytes / self.seconds / 1e9
        return (
            f"checksums of {self.tensors} tensors, {self.size_bytes / 1e6:.0f} MB, on {self.device}: "
            f"{self.seconds * 1e3:.1f} ms ({rate:.1f} GB/s)"
        )


def cost(size_bytes: int = 400_000_000, tensors: int = 100, device: str = "cpu", repeats: int = 5) -> Cost:
    """Measures the fastest of `repeats` rounds over made-up float32 tensors. Blocks: for those rounds."""
    import torch

    length = max(1, size_bytes // 4 // tensors)
    model = [torch.randn(length, device=device) for _ in range(tensors)]
    best = float("inf")
    for _ in range(repeats + 1):
        started = time.perf_counter()
        int(total(checksums(model)))  # reading the number waits for the device
        best = min(best, time.perf_counter() - started)
    return Cost(device, tensors, 4 * length * tensors, best)


if __name__ == "__main__":
    print(cost())
