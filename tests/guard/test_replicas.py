"""Checksums over raw bits, what of a model is compared, and how a difference is told."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from unhang.inside.guards import checksums
from unhang.inside.guards.checksums import checksum
from unhang.inside.guards.comparing import layout_of, replicated
from unhang.inside.guards.replicas import Difference, check_replicas

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.bool,
    *(getattr(torch, n) for n in ("float8_e4m3fn", "float8_e5m2", "uint16", "float4_e2m1fn_x2") if hasattr(torch, n)),
]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 4096, 4 * 4096, 4 * 4096 + 1, 100_003, 7 * 4 * 4096 * 2 + 4])
def test_each_bit_counts(size: int) -> None:
    made = torch.Generator().manual_seed(size)
    octets = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=made)
    known = checksum(octets)
    assert checksum(octets.clone()) == known
    for place in {0, size // 2, size - 1, *torch.randint(0, size, (20,), generator=made).tolist()}:
        other = octets.clone()
        other[place] ^= 1 << place % 8
        assert checksum(other) != known


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype(dtype: torch.dtype) -> None:
    octets = torch.arange(96, dtype=torch.uint8)
    tensor = (octets % 2).to(torch.bool) if dtype is torch.bool else octets.view(dtype)
    other = tensor.clone()
    other.view(torch.uint8)[17] ^= 1
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(tensor) != checksum(other)


def test_the_bits_count_and_not_the_values() -> None:
    nan = torch.tensor([1.0, float("nan")])
    assert checksum(nan) == checksum(nan.clone())
    assert checksum(torch.tensor(0.0)) != checksum(torch.tensor(-0.0))


def test_the_order_and_the_length_count() -> None:
    tensor = torch.arange(20_000, dtype=torch.float32)
    swapped = tensor.clone()
    swapped[3], swapped[17_000] = tensor[17_000], tensor[3]
    assert checksum(swapped) != checksum(tensor)
    assert checksum(torch.zeros(3)) != checksum(torch.zeros(4)) != checksum(torch.zeros(0))


def test_two_signs_do_not_cancel() -> None:
    tensor = torch.ones(100)
    for first in range(0, 90, 7):
        other = tensor.clone()
        other[first] *= -1
        other[first + 8] *= -1
        assert checksum(other) != checksum(tensor)


def test_views_have_the_sum_of_what_they_show() -> None:
    tensor = torch.randn(6, 10)
    assert checksum(tensor.t()) == checksum(tensor.t().contiguous())
    assert checksum(tensor[1:, 3:]) == checksum(tensor[1:, 3:].clone())
    octets = torch.arange(40, dtype=torch.uint8)
    assert checksum(octets[1:33]) == checksum(octets[1:33].clone())
    spun = torch.randn(5, dtype=torch.complex64)
    assert checksum(spun.conj()) == checksum(spun.conj().resolve_conj())


def test_many_tensors_at_once_have_the_same_sums_as_alone() -> None:
    tensors = [torch.randn(n) for n in (0, 1, 4096, 4097, 40_000)] + [torch.ones(3, dtype=torch.bool)]
    sums = checksums.checksums(tensors)
    assert sums.tolist() == [checksum(tensor) for tensor in tensors]
    assert int(checksums.total(sums)) != int(checksums.total(sums.flip(0)))
    assert checksums.checksums([]).tolist() == []


def test_the_cost_is_measured() -> None:
    cost = checksums.cost(size_bytes=40_000, tensors=10, repeats=1)
    assert cost.size_bytes == 40_000
    assert str(cost).startswith("checksums of 10 tensors, 0 MB, on cpu: ")


def names(model: nn.Module, *what: str) -> list[str]:
    return [name for name, _ in replicated(model, what or ("parameters", "buffers"))[0]]


def test_what_of_a_model_is_compared() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("table", torch.ones(3))
    assert names(model) == ["0.weight", "0.bias", "1.weight", "1.bias", "table", "1.num_batches_tracked"]
    assert names(model, "buffers") == ["table", "1.num_batches_tracked"]
    assert replicated(model, ["buffers"])[1] == {"local": ["1.running_mean", "1.running_var"]}


def test_tensors_without_data_of_their_own_are_left_out() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
    model.append(nn.LazyLinear(3))
    compared, left_out = replicated(model, ["parameters"])
    assert compared == []
    assert left_out == {"unusual": ["0.weight", "0.bias", "1.weight", "1.bias"]}


def test_parts_of_a_parameter_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.weight.ds_id = 3  # ZeRO stage 3
    assert names(model) == ["bias"]
    assert replicated(model, ["parameters"])[1] == {"sharded": ["weight"]}


def test_the_layout_is_of_names_shapes_and_dtypes() -> None:
    one = layout_of(["a"], [torch.zeros(2, 3)])
    assert one == layout_of(["a"], [torch.ones(2, 3)])
    assert len({one, layout_of(["b"], [torch.zeros(2, 3)]), layout_of(["a"], [torch.zeros(3, 2)])}) == 3


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (
            Difference(300, None, "layers.3.weight", 0, ((0, 1, 3), (2,))),
            "replicas differ since step 300: first in layers.3.weight, rank 2 differs from ranks 0, 1, 3",
        ),
        (
            Difference(300, 200, "w", 4, ((0, 1, 2, 3, 4), (6,), (7,))),
            "replicas differ since step 300 (equal at step 200): first in w and 4 more tensors, ranks 6, 7 differ from ranks 0-4",
        ),
        (
            Difference(1, None, "w", 0, ((0,), (1,))),
            "replicas differ since step 1: first in w, no majority: rank 0; rank 1 differ",
        ),
    ],
)
def test_a_difference_in_words(difference: Difference, text: str) -> None:
    assert str(difference) == text


def test_who_differs_from_a_majority() -> None:
    assert Difference(1, None, "w", 0, ((1, 2, 3), (0,))).ranks == (0,)
    assert Difference(1, None, "w", 0, ((0, 1), (2, 3))).ranks == ()


def test_alone_there_is_nothing_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    with check_replicas(nn.Linear(2, 2), every=1, on_differ="raise") as replicas:
        replicas.step()
        assert replicas.check_now() is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [{"every": 0}, {"what": ()}, {"what": ("gradients",)}, {"on_differ": "stop"}])
def test_arguments_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="every is at least 1"):
        check_replicas(nn.Linear(2, 2), **options)  # type: ignore[arg-type]


def test_the_modules_do_not_import_torch() -> None:
    modules = "replicas, learning, weights, checksums"
    code = f"import sys; from unhang.inside.guards import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
