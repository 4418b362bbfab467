"""Which processes of a made-up /proc are ranks, of which job, and who is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attach.made_up import Proc, torchrun
from unhang.attach.processes import Processes, missing_right
from unhang.attach.ranks import FoundJob, NoJob, candidates, chosen, find_jobs, listed, spawned_ranks


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


def jobs_of(proc: Proc) -> list[FoundJob]:
    return find_jobs(Processes(proc.root))


def pids_of(jobs: list[FoundJob]) -> list[tuple[int, ...]]:
    return [job.pids for job in jobs]


def test_the_ranks_of_torchrun_without_its_launcher(proc: Proc) -> None:
    pids = proc.job(100, 3)
    (job,) = jobs_of(proc)
    assert [(r.number, r.process.pid, r.local, r.local_size) for r in job.ranks] == [
        (i, pid, i, 3) for i, pid in enumerate(pids)
    ]
    assert (job.size, job.launchers) == (3, (100,))


def test_a_worker_of_a_loader_has_the_environment_of_its_rank_and_is_none(proc: Proc) -> None:
    pids = proc.job(100, 2)
    proc.add(200, pids[0], torchrun(0, 2))
    proc.add(201, 200, torchrun(0, 2))
    assert pids_of(jobs_of(proc)) == [tuple(pids)]


def test_a_launcher_under_srun_has_a_number_of_slurm_and_is_none(proc: Proc) -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "77"}
    proc.add(100, 1, slurm, "python /venv/bin/torchrun train.py")
    for i in range(2):
        proc.add(101 + i, 100, {**slurm, **torchrun(i + 2, 4)})
    (job,) = jobs_of(proc)
    assert [r.number for r in job.ranks] == [2, 3]


def test_a_launcher_with_the_number_of_its_node_is_none(proc: Proc) -> None:
    """As in a pod: RANK and WORLD_SIZE of the environment are those of nodes, and torchrun starts others."""
    of_pod = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "29500"}
    proc.add(100, 1, of_pod, "python /venv/bin/torchrun train.py")
    for i in range(2):
        proc.add(101 + i, 100, {**of_pod, **torchrun(i, 4)})
    assert pids_of(jobs_of(proc)) == [(101, 102)]


@pytest.mark.parametrize(
    ("number", "size"),
    [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ],
)
def test_each_starter_has_its_own_names(proc: Proc, number: str, size: str) -> None:
    for i in range(2):
        proc.add(100 + i, 1, {number: str(i), size: "2"})
    (job,) = jobs_of(proc)
    assert ([r.number for r in job.ranks], job.size) == ([0, 1], 2)


def test_one_task_of_slurm_is_no_rank(proc: Proc) -> None:
    proc.add(100, 1, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert jobs_of(proc) == []


def test_without_torch_it_is_no_rank(proc: Proc) -> None:
    proc.add(100, 1, torchrun(0, 2), torch=False)
    assert jobs_of(proc) == []


def test_two_jobs_with_one_address_are_two(proc: Proc) -> None:
    """Each in a container of its own, they do not meet; no job has a rank twice."""
    first, second = proc.job(100, 2), proc.job(200, 2)
    assert sorted(pids_of(jobs_of(proc))) == [tuple(first), tuple(second)]


def test_a_dead_process_is_none(proc: Proc) -> None:
    proc.job(100, 2)
    proc.add(110, 100, torchrun(2, 3), state="Z")
    assert pids_of(jobs_of(proc)) == [(101, 102)]


def test_pids_of_containers_are_said(proc: Proc) -> None:
    proc.add(4001, 1, torchrun(0, 1), inside=(17,))
    (job,) = jobs_of(proc)
    assert job.notes == ("in a container, the pids are those of this side: rank 0 is 4001, there 17",)


def test_the_children_of_spawn_are_numbered_by_their_stacks(proc: Proc) -> None:
    proc.add(100, 1, {}, "python train.py")
    for pid in (101, 102):
        proc.add(pid, 100, {}, "python -c from multiprocessing.spawn import spawn_main --multiprocessing-fork")
    processes = Processes(proc.root)
    asked = candidates(processes, ())
    assert [p.pid for p in asked] == [101, 102]
    file = "/x/site-packages/torch/multiprocessing/spawn.py"
    stacks = {
        101 + i: [{"os_thread_id": 101 + i, "frames": [
            {"name": "work", "filename": "/x/train.py", "locals": [{"name": "rank", "arg": True, "repr": "7"}]},
            {"name": "_wrap", "filename": file, "locals": [{"name": "i", "arg": True, "repr": str(i)}]},
        ]}] for i in (0, 1)
    }  # fmt: skip
    (job,) = find_jobs(processes, spawned_ranks(stacks, processes))
    assert [(r.number, r.process.pid, r.size) for r in job.ranks] == [(0, 101, 2), (1, 102, 2)]


def test_a_program_that_calls_nothing_rank_has_no_number(proc: Proc) -> None:
    for pid in (101, 102):
        proc.add(pid, 100, {})
    processes = Processes(proc.root)
    frames = [{"name": "serve", "filename": "/x/server.py", "locals": [{"name": "port", "arg": True, "repr": "3"}]}]
    assert spawned_ranks({101: [{"os_thread_id": 101, "frames": frames}]}, processes) == []


@pytest.mark.parametrize("target", ["100", "102", "300", "train.py", None])
def test_who_is_meant(proc: Proc, target: str | None) -> None:
    """A launcher, a rank, what a rank started, a part of the command line, or nothing."""
    pids = proc.job(100, 2)
    proc.add(300, pids[0], torchrun(0, 2), "sh -c sleep")
    processes = Processes(proc.root)
    assert pids_of(chosen(find_jobs(processes), target, processes)) == [tuple(pids)]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("999", "there is no process 999"),
        ("50", "process 50 is no rank"),
        ("60", "may not be read: run 'sudo"),
        ("eval.py", "no job whose command line has 'eval.py'"),
    ],
)
def test_why_nobody_is_meant(proc: Proc, target: str, words: str) -> None:
    proc.job(100, 2)
    proc.add(50, 1, {}, "python eval_other.py")
    proc.add(60, 1, None)
    processes = Processes(proc.root)
    with pytest.raises(NoJob, match=words):
        chosen(find_jobs(processes), target, processes)


def test_the_list_of_jobs_says_what_to_type_and_no_secret(proc: Proc) -> None:
    proc.add(100, 1, {}, "python /venv/bin/torchrun train.py")
    proc.add(101, 100, torchrun(0, 2), "python train.py --token abcdef12345")
    processes = Processes(proc.root)
    (line,) = listed(find_jobs(processes), processes)
    assert line.startswith("unhang attach 100   # 1 of 2 ranks, pids 101: ")
    assert "abcdef12345" not in line


@pytest.mark.parametrize(
    ("uid", "may_trace", "scope", "words"),
    [
        (1000, False, "0", ""),
        (1000, True, "2", ""),
        (1000, False, "1", "ptrace_scope is 1"),
        (1000, False, "3", "until the machine starts again"),
        (4242, False, "0", "run 'sudo unhang attach'"),
    ],
)
def test_which_right_is_missing(proc: Proc, uid: int, may_trace: bool, scope: str, words: str) -> None:
    proc.add(101, 1, torchrun(0, 1), uid=1000)
    proc.be(uid, may_trace, scope)
    right = missing_right(Processes(proc.root).by_pid[101], proc.root)
    assert words in right
    assert bool(right) == bool(words)
