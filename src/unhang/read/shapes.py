"""The shapes of a model's tensors: of a JSON file that a user made, or of the header of a safetensors file. No tensor is read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.read.files import decode_json, regular_size, unreadable

_MOST_BYTES, _MOST_TENSORS = 64 << 20, 1_000_000
_HELP = "give {name: [sizes]} as JSON, json.dump({n: list(p.shape) for n, p in model.named_parameters()}, f), or a .safetensors file"

Shapes = Mapping[str, tuple[int, ...]]
"""The sizes of each tensor, in the order in which the model has them."""


def read_shapes(path: Path) -> Shapes:
    """The shapes in a file.

    Raises:
        UnreadableInput: it cannot be read, or holds no shapes.
    """
    try:
        regular_size(path)
        with path.open("rb") as f:
            data = f.read(_MOST_BYTES + 1)
    except OSError as error:
        raise unreadable(str(path), error.strerror or str(error), "check its permissions") from error
    if path.suffix == ".safetensors":
        length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
        if not 0 < length <= min(len(data) - 8, _MOST_BYTES):
            raise unreadable(str(path), "it is not a safetensors file, or cut", _HELP)
        data = data[8 : 8 + length]
    elif len(data) > _MOST_BYTES:
        raise unreadable(str(path), f"it is larger than {_MOST_BYTES >> 20} MiB", _HELP)
    try:
        content = decode_json(data, str(path))
    except UnreadableInput as error:
        raise unreadable(str(path), "it is not JSON", _HELP) from error
    shapes = {name: sizes for name, value in _items(content) if (sizes := _sizes(value)) is not None}
    if not shapes:
        raise unreadable(str(path), "it holds no shapes of tensors", _HELP)
    return shapes


def _items(content: object) -> list[tuple[str, object]]:
    if not isinstance(content, Mapping):
        return []
    return [(str(name), value) for name, value in list(content.items())[:_MOST_TENSORS] if name != "__metadata__"]


def _sizes(value: object) -> tuple[int, ...] | None:
    sizes = value.get("shape") if isinstance(value, Mapping) else value
    if not isinstance(sizes, list) or not all(type(n) is int and 0 <= n < 1 << 40 for n in sizes):
        return None
    return tuple(sizes)
