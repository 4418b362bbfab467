"""A loop that exchanges pieces of one size can go on with empty ones, on the ranks that have no more; one whose pieces differ can not."""

from __future__ import annotations

import ast

import pytest

from unhang.fix.rounds import _length_of_padded

_GATHERS = """\
for start in range(0, len(feats), chunk):
    piece = feats[start:start + chunk]
    block = feats.new_zeros(chunk, 9)
    block[:len(piece)] = piece
    blocks = [torch.empty_like(block) for _ in range(world)]
    dist.all_gather(blocks, block)
"""


@pytest.mark.parametrize(
    ("old", "new", "is_padded"),
    [
        ("", "", True),
        ("dist.all_gather(blocks, block)", "dist.all_gather(blocks, piece)", False),
        ("feats.new_zeros(chunk, 9)", "piece * 2", False),
        ("piece = feats[start:start + chunk]", "piece = feats[start]", False),
        ("piece = feats[start:start + chunk]", "piece = feats[start:start + chunk] / feats.max()", True),
        ("piece = feats[start:start + chunk]", "piece = look(feats, start)", False),
        ("range(0, len(feats), chunk)", "range(0, count, chunk)", False),
        ("range(0, len(feats), chunk)", "batches(feats)", False),
    ],
)
def test_pieces_of_one_size_may_be_empty(old: str, new: str, is_padded: bool) -> None:
    loop = ast.parse(_GATHERS.replace(old, new) if old else _GATHERS).body[0]
    assert isinstance(loop, ast.For)
    found = _length_of_padded(loop)
    assert (ast.unparse(found) if found is not None else "") == ("len(feats)" if is_padded else "")
