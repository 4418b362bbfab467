"""What the recorder notes of tensors, loaders and batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from unhang.inside.recorder import facts, recording
from unhang.inside.recorder.recording import Recording
from unhang.read.page import read_page


@pytest.fixture
def rec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    made = Recording(str(tmp_path), recording.Page(str(tmp_path / "page.bin")), {})
    monkeypatch.setattr(recording, "current", made)
    monkeypatch.setattr(facts, "_noted", {})
    monkeypatch.setattr(facts, "_places", {})
    return made


def noted(rec: Recording) -> list[dict[str, Any]]:
    path = Path(rec.path("facts.jsonl"))
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("tensor", "layout"),
    [
        (torch.zeros(4, 4)[:, 0], "gaps"),
        (torch.zeros(8)[::2], "gaps"),
        (torch.zeros(1).expand(4), "overlap"),
        (torch.zeros(6).unfold(0, 3, 1), "overlap"),
        (torch.zeros(2, 3).t(), "permuted"),
        (torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), "permuted"),
    ],
)
def test_how_a_tensor_lies_in_memory(tensor: torch.Tensor, layout: str) -> None:
    assert facts.layout_of(list(tensor.size()), list(tensor.stride())) == layout


class Group:
    """As much of a process group as is asked for."""

    def allreduce(self, tensors: list[torch.Tensor], options: object = None) -> str:
        if options == "fails":
            raise ValueError("of the group")
        return "work"

    def size(self) -> int:
        return 2

    def _get_sequence_number_for_group(self) -> int:
        return 6


@pytest.fixture
def group() -> Any:
    kind = type("Own", (Group,), {"allreduce": Group.allreduce})
    c10d = type("c10d", (), {"_world": type("world", (), {"pg_names": {}})})
    facts.watch_tensors(c10d, type("bindings", (), {"ProcessGroup": kind}))
    return kind()


def test_a_place_is_noted_three_times_and_the_call_is_made_each_time(rec: Recording, group: Any) -> None:
    for _ in range(9):
        assert group.allreduce([torch.zeros(8)[::2]]) == "work"
    assert group.allreduce([torch.zeros(8)]) == "work"
    assert [(f["kind"], f["fields"]["layout"], f["fields"]["seq"]) for f in noted(rec)] == [("tensor", "gaps", 7)] * 3


_WHOLE = torch.zeros(8)


@pytest.mark.parametrize(
    ("outputs", "is_told"),
    [
        ([torch.zeros(4)] * 2, True),
        ([[torch.zeros(4)] * 2], True),
        (list(torch.zeros(4).expand(2, 4)), True),
        (list(_WHOLE.split(4)), False),
        (list(_WHOLE.split([0, 8])), False),  # an expert without tokens
        ([torch.zeros(0)] * 2, False),
        ([_WHOLE], False),
        ([], False),
        ([[]], False),
    ],
)
def test_outputs_that_are_one(outputs: list[Any], is_told: bool) -> None:
    assert (facts._aliased(outputs) is not None) is is_told


def test_nothing_of_ours_is_raised_and_what_the_group_raises_is(
    rec: Recording, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_is_new_here", None)  # a fault of ours
    assert group.allreduce([torch.zeros(8)[::2]]) == "work"
    with pytest.raises(ValueError, match="of the group"):
        group.allreduce([torch.zeros(8)], "fails")
    assert "tensors of collectives" in rec.noted


def test_a_loader_is_noted_once_and_an_iterable_one_is_not_asked_for_its_length(rec: Recording) -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

        def __len__(self) -> int:
            raise AssertionError("it was asked")

    loader = DataLoader(TensorDataset(torch.zeros(10, 2)), 4, drop_last=True)
    facts.watch_loader(rec, loader)
    facts.watch_loader(rec, loader)
    facts.watch_loader(rec, DataLoader(Endless(), 4))
    first, second = (f["fields"] for f in noted(rec))
    assert (first["samples"], first["of_rank"], first["batches"], first["drop_last"]) == (10, 10, 2, True)
    assert "samples" not in second


def test_the_last_end_of_a_loader_is_kept_for_each_place_that_asks_it(
    rec: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Batches:
        def __init__(self, count: int) -> None:
            self.left, self._num_yielded = count, 0

        def __next__(self) -> int:
            if not self.left:
                raise StopIteration
            self.left, self._num_yielded = self.left - 1, self._num_yielded + 1
            return 1

        def __iter__(self) -> Batches:
            return self

    monkeypatch.setattr(Batches, "__next__", facts.watch_end(Batches.__next__))
    monkeypatch.setattr(facts, "_ends", {})
    for count in (3, 2, 5):
        assert len(list(Batches(count))) == count
    for _ in Batches(4):
        break  # it has not ended
    assert sum(Batches(7)) == 7
    ends = [c for c in read_page(Path(rec.path("page.bin"))).pending if c.kind == "loader_end"]
    assert [(c.index, c.detail) for c in ends] == [(3, "5"), (1, "7")]


def test_an_iterator_that_counts_nothing_ends_as_it_does(rec: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_ends", {})
    fetch = facts.watch_end(lambda self: next(self))
    with pytest.raises(StopIteration):
        fetch(iter(()))
    assert "end of a loader" in rec.noted


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (torch.zeros(4, 3), 4, 0),
        ([torch.zeros(4, 3), torch.zeros(4)], 4, 0),
        ({"input_ids": torch.zeros(4, 16, dtype=torch.long)}, 4, 64),
        ((torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)), 4, 0),
        ("text", 0, 0),
        (None, 0, 0),
    ],
)
def test_samples_and_tokens_of_a_batch(rec: Recording, batch: object, samples: int, tokens: int) -> None:
    facts.count_batch(rec, batch)
    assert (rec.page.words[recording.SAMPLES], rec.page.words[recording.TOKENS]) == (samples, tokens)
    assert rec.noted == set()
