"""Real jobs whose ranks are set up or decide differently, without and with `assert_same` and `together`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .guard_jobs import run


def test_without_assert_same_a_setting_that_differs_becomes_a_hang(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        3,
        """
    begin()
    accumulate = 2 if rank == 2 else 1
    for i in range(4):
        if (i + 1) % accumulate == 0:
            step()
    say("done")
    """,
    )
    assert ended.code != 0, ended
    assert ended.said(2) == ["done"], ended


def test_assert_same_names_the_minority_on_all_ranks(tmp_path: Path) -> None:
    body = """
    begin(20)
    for name, value in (("accumulate", 2 if rank == 2 else 1), ("seed", 7), ("features", torch.zeros(3 + rank // 3, 2)),
                        ("vocabulary", [*range(1000), rank % 2])):
        try:
            say(assert_same(name, value))
        except RanksDiffer as error:
            say(error)
    say(assert_same("lr", rank == 1, on_differ="warn"))
    end()
    """
    ended = run(tmp_path, 4, body)
    first, second, third, fourth, last = ended.said_by_all(4).splitlines()
    assert first == "accumulate differs: ranks 0, 1, 3 have 1, rank 2 has 2", ended
    assert (second, last) == ("True", "False"), ended
    assert third == (
        'features differs: ranks 0-2 have "Tensor of torch.float32, shape [3, 2]", rank 3 has "Tensor of torch.float32, shape [4, 2]"'
    )
    assert fourth.startswith("vocabulary differs: ranks 0, 2 have [0, 1, 2,"), ended
    assert fourth.count("sha256") == 2, ended
    assert ended.stderr.count("[train_setup] seed = 7\n") == 1, ended
    assert ended.stderr.count("[train_setup] warning: lr differs: ranks 0, 2, 3 have false, rank 1 has true") == 1, (
        ended
    )


@pytest.mark.parametrize("missing", [0, 2])
def test_a_rank_that_does_not_come_to_assert_same_is_named(missing: int, tmp_path: Path) -> None:
    body = f"""
    begin(30)
    try:
        if rank == {missing}:
            wait_for("said", *({{0, 1, 2}} - {{{missing}}}))
        assert_same("batch_size", 3, limit_s=2)
    except RanksDiffer as error:
        say(error)
        write("said")
    write("end")
    wait_for("end")
    """
    ended = run(tmp_path, 3, body)
    words = f"rank {missing} did not come to assert_same('batch_size') within 2 s"
    for rank in {0, 1, 2} - {missing}:
        assert ended.said(rank) == [words], ended


def test_assert_same_hears_of_a_failure_instead_of_waiting(tmp_path: Path) -> None:
    body = """
    try:
        with process_group("gloo", timeout=40):
            if rank == 1:
                raise ValueError("no such data set")
            assert_same("batch_size", 3)
    except (ValueError, PeerFailed) as error:
        say(type(error).__name__, "no such data set" in str(error))
    """
    ended = run(tmp_path, 3, body)
    assert (ended.said(0), ended.said(1), ended.said(2)) == (
        ["PeerFailed True"],
        ["ValueError True"],
        ["PeerFailed True"],
    ), ended


def test_without_together_a_step_that_one_rank_skips_becomes_a_hang(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        3,
        """
    begin()
    for loss in (1.0, float("nan") if rank == 1 else 2.0, 3.0):
        if loss != loss:
            continue
        step(loss)
    say("done")
    """,
    )
    assert ended.code != 0, ended
    assert ended.said(1) == ["done"], ended


def test_together_skips_the_step_on_all_ranks(tmp_path: Path) -> None:
    body = """
    begin(20)
    sums = []
    for loss in (1.0, float("nan") if rank == 1 else 2.0, 3.0):
        agreed = together(torch.tensor(loss).isnan(), name="nan")
        if agreed:
            assert agreed.any and not agreed.all and agreed.ranks == (1,), agreed
            continue
        sums.append(step(loss))
    assert together(True).all
    say(sums)
    end()
    """
    ended = run(tmp_path, 3, body)
    assert ended.said_by_all(3) == "[3.0, 9.0]", ended


def test_together_tries_again_with_half_the_batch_under_ddp(tmp_path: Path) -> None:
    body = """
    from torch.nn.parallel import DistributedDataParallel
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
        def forward(self, x):
            if rank == 1 and len(x) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.inner(x)
    begin(20)
    ddp, sizes = DistributedDataParallel(Model()), []
    for step_number in range(3):
        batch = torch.ones(16, 2)
        while len(batch):
            loss = None
            try:
                loss = ddp(batch).sum()
            except torch.OutOfMemoryError:
                pass
            if not together(loss is None, name="out of memory"):
                loss.backward()
                break
            batch = batch[: len(batch) // 2]
        sizes.append(len(batch))
    say(sizes)
    del ddp, loss
    end()
    """
    ended = run(tmp_path, 2, body)
    assert ended.said_by_all(2) == "[4, 4, 4]", ended


def test_ranks_that_ask_different_questions_are_told_so(tmp_path: Path) -> None:
    body = """
    begin(20)
    together(False)
    for name in (("nan", "stop") if rank else ("stop",)):
        try:
            together(False, name=name, limit_s=2)
        except RanksDiffer as error:
            say(error)
    write("end")
    wait_for("end")
    """
    ended = run(tmp_path, 3, body)
    text = "the ranks are not at the same place: ranks 1, 2 at call 1 of together(name='nan'); rank 0 at call 1 of together(name='stop')"
    assert ended.said(0) == [text], ended
    assert ended.said(1)[0] == text, ended
    assert ended.said(1)[1] == "rank 0 did not come to together(name='stop') within 2 s", ended


@pytest.mark.parametrize("before", ["", "together(False)"])
def test_a_rank_that_does_not_come_to_together_is_named(before: str, tmp_path: Path) -> None:
    body = f"""
    begin(30)
    {before}
    try:
        if rank == 1:
            wait_for("said", 0, 2)
        together(False, name="nan", limit_s=2)
    except RanksDiffer as error:
        say(error)
        write("said")
    write("end")
    wait_for("end")
    """
    ended = run(tmp_path, 3, body)
    words = "rank 1 did not come to together(name='nan') within 2 s"
    assert (ended.said(0), ended.said(2)) == ([words], [words]), ended
