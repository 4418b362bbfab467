"""What a call of so many elements may be, by the shapes of the model."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

import pytest

from unhang.analyze.waits.open_calls import named
from unhang.cli.main import main
from unhang.errors import UnreadableInput
from unhang.read.case import read_shapes

TEXT = Path(__file__).parents[2] / "stories" / "texts" / "masked_lm.md"
MODEL = {
    "encoder.embed.weight": (28996, 512),
    "encoder.layer.weight": (512, 2048),
    "encoder.layer.bias": (2048,),
    "head.norm": (512,),
    "head.bias": (28996,),
}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (28996 * 512, "`encoder.embed.weight` (28,996 x 512)"),
        (len(MODEL), "one number for each of the 5 tensors, as in DDP's map of used parameters"),
        (28996 + 512 + 2048, "a bucket of DDP, the gradients from `head.bias` to `encoder.layer.bias` (3 tensors)"),
        (621 * 2048, "621 rows of 2,048, the width of `encoder.layer.weight`"),
        (5056, "the state of torch's random generator"),
    ],
)
def test_a_count_is_named(count: int, text: str) -> None:
    assert text in named(count, MODEL)


@pytest.mark.parametrize("count", [7, 28997, 28996 * 512 + 1])
def test_what_fits_nothing_has_no_name(count: int) -> None:
    assert named(count, MODEL) == ""


def test_tensors_of_one_size_are_all_named() -> None:
    shapes = {f"layers.{i}.weight": (64, 64) for i in range(5)}
    assert "`layers.0.weight`, `layers.1.weight`, `layers.2.weight` and 2 more (64 x 64)" in named(4096, shapes)


def test_a_run_of_tensors_that_is_not_the_only_one_is_no_bucket() -> None:
    shapes = {f"layers.{i}": (10,) for i in range(6)}
    assert named(20, shapes) == ""


def safetensors(path: Path) -> Path:
    header = {"__metadata__": {"format": "pt"}}
    header |= {n: {"dtype": "F32", "shape": list(s), "data_offsets": [0, prod(s)]} for n, s in MODEL.items()}  # type: ignore[misc]
    data = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    return path


def test_shapes_are_read_from_json_and_from_the_header_of_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL))
    assert dict(read_shapes(path)) == MODEL == dict(read_shapes(safetensors(tmp_path / "model.safetensors")))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b"[1]"), ("b.json", b"{"), ("c.json", b""), ("d.safetensors", b"\xff" * 20), ("e.safetensors", b"x"), ("f.json", b'{"a": "b"}'),
        ("g.json", b'{"a": [1.5], "b": [-1], "c": [true]}'),
    ],
)  # fmt: skip
def test_what_holds_no_shapes_is_said_in_one_line(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnreadableInput):
        read_shapes(path)


def test_the_call_of_the_story_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(TEXT), "--shapes", str(safetensors(tmp_path / "m.safetensors"))]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "14,845,952 elements: `encoder.embed.weight` (28,996 x 512)" in told
