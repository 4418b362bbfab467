from dataclasses import dataclass
from typing import List

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Tile:
    top: int
    left: int
    height: int
    width: int


def split_tiles(height: int, width: int, size: int, overlap: int) -> List[Tile]:
    stride = size - overlap
    rows = max(1, -(-(height - overlap) // stride))
    cols = max(1, -(-(width - overlap) // stride))
    tiles = []
    for r in range(rows):
        for c in range(cols):
            top = min(r * stride, max(height - size, 0))
            left = min(c * stride, max(width - size, 0))
            tiles.append(Tile(top, left, min(size, height), min(size, width)))
    return tiles


def gather_rows(rows: torch.Tensor, group) -> List[torch.Tensor]:
    """The rows of the group, one tensor per rank."""
    world = dist.get_world_size(group)
    count = torch.tensor([rows.size(0)], device=rows.device)
    counts = [torch.zeros_like(count) for _ in range(world)]
    dist.all_gather(counts, count, group=group)
    counts = [int(c) for c in counts]
    longest = max(counts)
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: rows.size(0)] = rows
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded, group=group)
    return [p[:n] for p, n in zip(parts, counts)]


def blend(canvas, weight, tile, pixels, scale):
    top, left = tile.top * scale, tile.left * scale
    h, w = pixels.shape[-2:]
    canvas[..., top : top + h, left : left + w] += pixels
    weight[..., top : top + h, left : left + w] += 1.0
