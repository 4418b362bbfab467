"""Real jobs whose ranks have different numbers of batches, without and with `align`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .guard_jobs import run

UNEVEN = """
begin()
loader = [1.0] * (12 if rank == 1 else 13)
{wrapped}
try:
    for i, batch in enumerate(loader):
        step(batch)
    say("done")
except RanksDiffer as error:
    say(i, error)
"""


def test_without_align_the_longer_ranks_wait_for_ever(tmp_path: Path) -> None:
    ended = run(tmp_path, 3, UNEVEN.format(wrapped=""))
    assert ended.code != 0, ended
    assert ended.said(1) == ["done"], ended
    assert "Timed out waiting 3000ms" in ended.stderr or "Connection closed" in ended.stderr, ended


def test_known_lengths_are_compared_before_the_first_step(tmp_path: Path) -> None:
    ended = run(tmp_path, 3, UNEVEN.format(wrapped="i = -1\nloader = align(loader)") + "\nend()\n")
    assert ended.code == 0, ended
    assert ended.said_by_all(3).startswith("-1 rank 1 has 12 batches; ranks 0, 2 have 13 batches; use drop_last"), ended


def test_unknown_lengths_end_all_ranks_before_the_step_that_would_hang(tmp_path: Path) -> None:
    ended = run(tmp_path, 3, UNEVEN.format(wrapped="loader = align(iter(loader), name='train')") + "\nend()\n")
    assert ended.code == 0, ended
    text = ended.said_by_all(3)
    assert text.startswith("11 rank 1 has 12 batches; ranks 0, 2 have 13 or more batches; use drop_last"), ended


def test_a_length_that_is_not_kept_is_shown_beside_the_count(tmp_path: Path) -> None:
    body = """
    begin()
    class Short:
        def __len__(self): return 5
        def __iter__(self): return iter([1.0] * (3 if rank == 1 else 5))
    try:
        for batch in align(Short()):
            step()
    except RanksDiffer as error:
        say(error)
    end()
    """
    ended = run(tmp_path, 4, body)
    text = ended.said_by_all(4)
    assert text.startswith("rank 1 has 3 batches (5 by len()); ranks 0, 2, 3 have 4 or more batches (5 by len())"), (
        ended
    )


def test_stop_together_ends_every_epoch_at_the_same_step(tmp_path: Path) -> None:
    body = """
    begin()
    class Sampler:
        epochs = []
        def set_epoch(self, epoch): self.epochs.append(epoch)
    class Loader(list):
        sampler = Sampler()
    loader = align(Loader([1.0] * (12 if rank == 1 else 14 + rank)), mode="stop_together", name="train")
    steps = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        steps.append(sum(1 for batch in loader if step(batch)))
    say(steps, loader.sampler.epochs)
    end()
    """
    ended = run(tmp_path, 3, body)
    assert ended.said_by_all(3) == "[12, 12, 12] [0, 1, 2]", ended
    told = "the epoch ends for all ranks after 12 batches, 6 left unused; rank 1 has 12 batches (12 by len()); rank 0 has 13 or more"
    assert ended.stderr.count(told) == 1, ended
    assert ended.stderr.count("left unused") == 1, ended


def test_warn_says_it_and_goes_on(tmp_path: Path) -> None:
    body = """
    begin()
    counts = []
    for epoch in range(2):
        counts.append(sum(1 for batch in align([0] * (3 if rank else 2), mode="warn")))
        counts.append(sum(1 for batch in align(iter([0] * (3 if rank else 2)), mode="warn")))
    say(counts)
    end()
    """
    ended = run(tmp_path, 2, body)
    assert (ended.said(0), ended.said(1)) == (["[2, 2, 2, 2]"], ["[3, 3, 3, 3]"]), ended
    assert "rank 0 has 2 batches; rank 1 has 3 or more batches" in ended.stderr, ended
    assert "it goes on, and in this epoch does not look at the other ranks" in ended.stderr, ended


def test_an_exception_in_one_loader_reaches_all_ranks(tmp_path: Path) -> None:
    body = """
    begin()
    def batches():
        yield 1.0
        if rank == 1:
            raise ValueError("broken shard 7")
        yield 1.0
        yield 1.0
    done = 0
    try:
        for batch in align(batches(), name="train"):
            step(); done += 1
    except ValueError as error:
        say(done, "own", error)
    except PeerFailed as error:
        say(done, "peer", str(error).replace("\\n", " "))
    end()
    """
    ended = run(tmp_path, 3, body)
    assert ended.code == 0, ended
    assert ended.said(1) == ["1 own broken shard 7"], ended
    for rank in (0, 2):
        (text,) = ended.said(rank)
        assert text.startswith("1 peer rank 1 failed: in its loader, at batch 2 of epoch 1 of align('train'"), ended
        assert "ValueError: broken shard 7" in text, ended
        assert "in batches" in text, ended


def test_a_loader_that_cannot_be_started_is_told_to_all_ranks(tmp_path: Path) -> None:
    body = """
    begin(20)
    class Loader:
        def __iter__(self):
            if rank == 1:
                raise OSError("no file descriptors left")
            return iter([1.0])
    try:
        for batch in align(Loader()):
            step()
    except (OSError, PeerFailed) as error:
        say(type(error).__name__, "no file descriptors left" in str(error))
    end()
    """
    ended = run(tmp_path, 2, body)
    assert (ended.said(0), ended.said(1)) == (["PeerFailed True"], ["OSError True"]), ended


def test_an_exception_in_one_loader_ends_a_guarded_job_with_its_traceback_on_all_ranks(tmp_path: Path) -> None:
    body = """
    def batches():
        yield 1.0
        if rank == 1:
            raise ValueError("broken shard 7")
        yield 1.0
    try:
        with process_group("gloo", timeout=40):
            for batch in align(batches()):
                step()
    except (ValueError, PeerFailed) as error:
        say(type(error).__name__, "broken shard 7" in str(error))
    """
    ended = run(tmp_path, 3, body)
    assert (ended.said(0), ended.said(1)) == (["PeerFailed True"], ["ValueError True"]), ended
    assert ended.seconds < 30, ended


def test_a_break_in_all_ranks_leaves_nothing_for_the_next_epoch(tmp_path: Path) -> None:
    body = """
    begin()
    loader = align([1.0] * 6)
    stream = align((i for i in range(100)), name="stream")
    seen, numbers = [], []
    for epoch in range(4):
        for i, batch in enumerate(loader):
            step()
            if i == epoch:
                break
        seen.append(i)
        for number in stream:
            numbers.append(number)
            if len(numbers) % 3 == 0:
                break
    say(seen, numbers)
    end()
    """
    ended = run(tmp_path, 2, body)
    assert ended.said_by_all(2) == f"[0, 1, 2, 3] {list(range(12))}", ended


def test_after_a_break_in_one_rank_a_warning_goes_on_unguarded(tmp_path: Path) -> None:
    body = """
    begin(20)
    loader = align([1.0] * 6, mode="warn")
    seen = 0
    for epoch in range(3):
        for i, batch in enumerate(loader):
            seen += 1
            if rank == 1 and epoch == 0 and i == 1:
                break
    say(seen)
    end()
    """
    ended = run(tmp_path, 2, body)
    assert (ended.said(0), ended.said(1)) == (["18"], ["14"]), ended
    assert "from now on does not look at the other ranks" in ended.stderr, ended


def test_a_break_in_one_rank_is_named_at_its_next_epoch(tmp_path: Path) -> None:
    body = """
    begin(20)
    loader = align([1.0] * 6, name="train")
    try:
        for epoch in range(2):
            for i, batch in enumerate(loader):
                if rank == 2 and i == 1:
                    break
    except RanksDiffer as error:
        say(error)
    end()
    """
    ended = run(tmp_path, 3, body)
    text = ended.said_by_all(3)
    assert text.startswith("the ranks are not at the same place: ranks 0, 1 at batch 4 of epoch 1 of align('train'"), (
        ended
    )
    assert "rank 2 at batch 1 of epoch 2" in text, ended


def test_a_break_in_one_rank_that_leaves_the_others_in_a_collective_ends_a_guarded_job(tmp_path: Path) -> None:
    body = """
    with process_group("gloo", timeout=40):
        loader = align([1.0] * 6, name="train")
        for epoch in range(2):
            for i, batch in enumerate(loader):
                step()
                if rank == 2 and i == 1:
                    break
    """
    ended = run(tmp_path, 3, body)
    assert ended.code not in (0, None), ended
    assert "rank 2 at batch 1 of epoch 2" in ended.stderr, ended
    assert ended.seconds < 30, ended


@pytest.mark.parametrize("before", ["", "together(False)"])
def test_a_rank_whose_first_batch_does_not_come_is_named(before: str, tmp_path: Path) -> None:
    body = f"""
    begin(30)
    {before}
    def batches():
        if rank == 1:
            wait_for("said", 0, 2)
        yield 1.0
    try:
        for batch in align(batches(), name="train", limit_s=2):
            pass
    except RanksDiffer as error:
        say(error)
        write("said")
    write("end")
    wait_for("end")
    """
    ended = run(tmp_path, 3, body)
    words = "rank 1 did not come to batch 1 of epoch 1 of align('train', mode='raise') within 2 s"
    assert (ended.said(0), ended.said(2)) == ([words], [words]), ended


def test_a_slow_first_batch_within_the_limit_is_waited_for(tmp_path: Path) -> None:
    body = """
    begin(30)
    def batches():
        if rank == 1:
            time.sleep(2)
        yield 1.0
    say(sum(step(batch) for batch in align(batches())))
    end()
    """
    assert run(tmp_path, 3, body).said_by_all(3) == "3.0"


A_RANK_DIES = """
begin(30)
try:
    for i, batch in enumerate(align([1.0] * 5)):
        if rank == 1 and i == 2:
            os._exit(0)
    say("done")
except PeerFailed as error:
    say("the connection to another rank is lost" in str(error))
"""


def test_a_rank_that_dies_is_noticed_by_the_others(tmp_path: Path) -> None:
    ended = run(tmp_path, 3, A_RANK_DIES)
    assert (ended.said(0), ended.said(2)) == (["True"], ["True"]), ended


def test_a_real_loader_with_workers_and_ddp(tmp_path: Path) -> None:
    body = """
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    with process_group("gloo", timeout=40) as mine:
        assert_same("batch_size", 4)
        data = TensorDataset(torch.randn(20 if rank else 28, 3))
        loader = align(DataLoader(data, batch_size=4, num_workers=1), mode="stop_together")
        ddp = DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        steps = 0
        for epoch in range(2):
            for (batch,) in loader:
                ddp(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        say(steps, len(loader))
        del ddp
    """
    ended = run(tmp_path, 2, body)
    assert ended.code == 0, ended
    assert (ended.said(0), ended.said(1)) == (["10 7"], ["10 5"]), ended
    assert "[train_setup] batch_size = 4" in ended.stderr, ended


def test_groups_that_are_made_anew_are_aligned_too(tmp_path: Path) -> None:
    body = """
    for time_round in range(2):
        where = f"file://{Path.cwd()}/store-{time_round}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=timedelta(seconds=20))
        say(sum(1 for batch in align([1.0] * (5 - rank), mode="stop_together") if step(batch)))
        assert together(rank == 0).ranks == (0,)
        dist.destroy_process_group()
    """
    ended = run(tmp_path, 2, body)
    assert ended.said_by_all(2) == "4\n4", ended


@pytest.mark.whole
@pytest.mark.torchrun
def test_under_torchrun_the_ranks_end_well(tmp_path: Path) -> None:
    body = """
    begin(30)
    assert_same("lr", 0.1)
    total = 0
    for epoch in range(2):
        for batch in align([1.0] * (4 - rank), mode="stop_together"):
            total += step()
            together(rank == 1, name="odd")
    say(total)
    dist.destroy_process_group()
    """
    ended = run(tmp_path, 2, body, launcher="torchrun")
    assert ended.code == 0, ended
    assert ended.said_by_all(2) == "12.0", ended
