"""However a rank ends, the job ends: soon, with the right rank named, and with nothing left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .guarded import Ended, run

PROGRAM = """
import os, signal, sys, time
import torch, unhang
from torch.nn.parallel import DistributedDataParallel

how, culprit = sys.argv[1], int(sys.argv[2])

def fail():
    if how == "raises":
        raise ValueError("bad sample")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "leaves":
        sys.exit(0)
    if how == "leaves_3":
        sys.exit(3)
    if how == "os_exit":
        os._exit(3)

with unhang.process_group("gloo", timeout="5m") as job:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        for step in range(100_000 if how == "stopped" else 5):
            if step == 3 and how == "ends_early" and job.rank == culprit:
                break
            if step == 3 and how in ("deaf", "sleeps"):
                if job.rank == culprit:
                    raise ValueError("bad sample")
                time.sleep(100)
            if step == 3 and job.rank == culprit:
                fail()
            ddp(torch.ones(2, 4)).sum().backward()
        print(f"rank {job.rank} trained", flush=True)
    finally:
        if how == "raises_at_end" and job.rank == culprit:
            raise OSError("disk full")
"""
# Without a guard: the same end of rank 1, and the others still wait after 8 s.
UNGUARDED = """
import datetime, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
if dist.get_rank() == 1:
    try:
        raise ValueError("bad sample")
    except ValueError:
        time.sleep(300)
dist.all_reduce(torch.ones(1))
"""


# By the look at the processes of this machine, or by the call to all ranks.
GONE = r"rank {0} failed: no sign of life|rank {0} \(pid \d+\) has ended without an error of its training"


def _told(ended: Ended) -> list[str]:
    """The final errors of the ranks that raised, without those that ended otherwise."""
    return re.findall(r"^(?:\[rank\d\]: )?unhang\.errors\.(?:PeerFailed|RanksDiffer): (.*)$", ended.err, re.M)


def _check(ended: Ended, words: str, peers: int) -> None:
    told = _told(ended)
    assert ended.exit_code != 0, ended
    assert len(told) == peers, ended
    assert all(re.match(words, text) for text in told), ended


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "rank {} failed: ValueError: bad sample"),
        ("raises_at_end", "rank {} failed: OSError: disk full"),
        ("killed", GONE),
        ("os_exit", GONE),
        ("leaves", r"rank {} failed: it left with sys\.exit\(0\)"),
        ("leaves_3", r"rank {} failed: it left with sys\.exit\(3\)"),
    ],
)
def test_the_others_stop_and_name_the_rank(how: str, words: str, culprit: int, tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, how, str(culprit), ranks=3)
    _check(ended, words.format(culprit), peers=2)
    assert f"rank {3 - culprit} failed" not in ended.err, ended


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "rank 0 failed: ValueError: bad sample"),
        ("killed", "the store on rank 0's host is gone"),
        ("os_exit", "the store on rank 0's host is gone"),
        ("leaves", r"rank 0 failed: it left with sys\.exit\(0\)"),
    ],
)
def test_rank_0_takes_the_store_with_it(how: str, words: str, tmp_path: Path) -> None:
    _check(run(PROGRAM, tmp_path, how, "0", ranks=3, launcher="hosted"), words, peers=2)


@pytest.mark.parametrize(("launcher", "culprit"), [("patient", 1), ("hosted", 1), ("hosted", 0)])
def test_a_stopped_rank_is_named_long_before_the_timeout(launcher: str, culprit: int, tmp_path: Path) -> None:
    """Nothing dies, and it hears no SIGTERM: its neighbours tell, and continue it, so that it ends; also the store's host."""
    ended = run(PROGRAM, tmp_path, "stopped", str(culprit), ranks=3, launcher=launcher)
    assert ended.exit_code != 0, ended
    # Ended by us, or by the connection to one that was.
    ends = re.findall(r"it ends now, because (.*?) \(SIGSTOP", ended.err)
    ends += [text.partition(" (SIGSTOP")[0] for text in _told(ended)]
    assert ends == [f"rank {culprit} failed: it was stopped by a signal"] * 3, ended


@pytest.mark.parametrize("how", ["sleeps", "deaf"])
def test_ranks_that_do_not_come_back_are_ended(how: str, tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, how, "1", ranks=3)
    assert ended.exit_code != 0, ended
    assert ended.err.count("does not come back by itself; it ends now, because rank 1 failed: ValueError") == 2, ended
    assert ended.err.count("ValueError: bad sample") >= 4, ended


def test_one_rank_with_fewer_steps_is_found_by_the_others_that_wait(tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, "ends_early", "1", ranks=3)
    _check(ended, "rank 1 came to the end of the training after", peers=3)
    assert "train.py" in _told(ended)[0], ended


@pytest.mark.whole
def test_without_the_guard_the_others_wait(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no end within"):
        run(UNGUARDED, tmp_path, limit_s=15)


def test_the_usual_launcher_sees_the_right_exit(tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, "raises", "1", ranks=2, launcher="fork")
    assert ended.exit_code == 1
    assert "forkrun: rank 1" in ended.err, ended


@pytest.mark.parametrize("launcher", ["fork", "hosted", "patient"])
def test_a_clean_end_with_the_model_alive(launcher: str, tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, "none", "-1", launcher=launcher)
    assert ended.exit_code == 0, ended
    assert sorted(re.findall(r"rank \d trained", ended.out)) == ["rank 0 trained", "rank 1 trained"]
    assert "failed" not in ended.err, ended


# Rank 1 needs longer for its end than the others have patience, as on a busy machine: what it gives up takes its time.
SLOW_END = """
import time
import torch, torch.distributed as dist, unhang

class Writer:
    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(4)

with unhang.process_group("gloo", timeout="5m", grace=0.5) as job:
    if job.rank == 1:
        Writer()
        raise ValueError("bad sample")
    dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_can_raise_is_not_ended_because_the_failed_one_is_slow(tmp_path: Path) -> None:
    ended = run(SLOW_END, tmp_path)
    _check(ended, "rank 1 failed: ValueError: bad sample", peers=1)
    assert "it ends now" not in ended.err, ended
