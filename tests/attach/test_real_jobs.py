"""Jobs that run and were started without `unhang`: those that stand still are named, those that move are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.attach.jobs import BEGIN, culprits, line_of, look, running, wait_until
from tests.ports import free_port
from tests.slowness import slowness
from unhang.attach import Wish, jobs_wanted, looks, watch
from unhang.cli.diagnose import command as diagnose
from unhang.cli.reports import bundle
from unhang.model import Outcome
from unhang.watch.process_tree import descendants_of

pytestmark = pytest.mark.timeout(120)

STALLS = {
    "sleeps": ("ready()\nif rank == 1: time.sleep(600)  # here\nstep()", (1,)),
    "waits for a lock": (
        "lock = threading.Lock()\nlock.acquire()\nready()\nif rank == 2: lock.acquire()  # here\nstep()",
        (2,),
    ),
    "is stopped": ("ready()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)  # here\nstep()", (1,)),
    "makes another call": (
        "def evaluate():\n    dist.broadcast(torch.ones(4), 0)\n\nready()\nif rank == 0:\n    evaluate()  # here\ndist.barrier()",
        (0,),
    ),
    "waits for a pipe": ("read, write = os.pipe()\nready()\nif rank == 0: os.read(read, 1)  # here\nstep()", (0,)),
}


@pytest.mark.parametrize("name", STALLS)
def test_who_does_not_come_is_named_with_the_line(tmp_path: Path, name: str) -> None:
    program, who = STALLS[name]
    with running(tmp_path, program) as (job, script):
        judged = look(job.pid, tmp_path)
        assert culprits(judged) == (Outcome.STALLED, who, line_of(script, "# here"))
        assert job.poll() is None  # it was looked at, and nothing else


# Who computes gives way: the other tests need the cores.
UNKNOWN = {
    "a sleep that ends soon": "ready()\nif rank == 1: time.sleep(60)  # here\nstep()",
    "an endless loop": "def spin():\n    os.nice(10)\n    n = 0\n    while True:\n        n += 1  # here\n\nready()\nif rank == 1: spin()\nstep()",
    "one long call": "os.nice(10)\nready()\nif rank == 1: sum(range(10**12))  # here\nstep()",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_who_computes_is_said_and_not_accused(tmp_path: Path, name: str) -> None:
    """Long work looks the same."""
    with running(tmp_path, UNKNOWN[name]) as (job, _):
        judged = look(job.pid, tmp_path)
    assert culprits(judged) == (Outcome.UNKNOWN, (), None)
    assert any("ranks 0, 2 wait in all_reduce" in note and "for rank 1" in note for note in judged.diagnosis.notes)


HEALTHY = {
    "steps": "ready()\nfor _ in range(10**6):\n    step()\n    time.sleep(0.05)",
    "work of rank 0 that moves": (
        "def part(i):\n    return sorted(str(j) for j in range(5000))\n\ndef prepare():\n    for i in range(10**6): part(i)\n\n"
        "os.nice(10)\nready()\nif rank == 0: prepare()\ndist.barrier()"
    ),
    "one rank that is slow": "ready()\nfor _ in range(10**6):\n    time.sleep(0.4 if rank == 1 else 0)\n    step()",
    "a child that works": (
        "import subprocess\nready()\nif rank == 0: subprocess.run(['nice', sys.executable, '-c', 'while True: pass'])\ndist.barrier()"
    ),
    "a large call": "os.nice(10)\nready()\nt = torch.ones(20_000_000)\nwhile True: dist.all_reduce(t)",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_is_left_alone(tmp_path: Path, name: str) -> None:
    with running(tmp_path, HEALTHY[name]) as (job, _):
        judged = look(job.pid, tmp_path)
        assert judged.diagnosis.outcome in (Outcome.MOVES, Outcome.UNKNOWN)
        assert not judged.diagnosis.findings
        assert job.poll() is None


def test_a_small_group_makes_no_culprits_of_the_others(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1 in their group; ranks 2 and 3 are in no call of it."""
    program = "group = dist.new_group([0, 1])\nready()\nif rank == 0: dist.all_reduce(torch.ones(4), group=group)\ntime.sleep(600)"
    with running(tmp_path, program, 4) as (job, _):
        judged = look(job.pid, tmp_path)
    assert not {2, 3} & {r for f in judged.diagnosis.findings for r in f.culprit_ranks}


def test_ranks_in_a_ring_of_receives_wait_for_each_other(tmp_path: Path) -> None:
    program = "ready()\ndist.recv(torch.ones(4), src=(rank - 1) % 3)  # here"
    with running(tmp_path, program) as (job, script):
        judged = look(job.pid, tmp_path)
    assert judged.waits.cycles == ((0, 1, 2),)
    assert culprits(judged)[2] == line_of(script, "# here")


def test_children_of_spawn(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(
        "import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp\nfrom pathlib import Path\n"
        "def work(i, file):\n    dist.init_process_group('gloo', init_method=f'file://{file}', rank=i, world_size=2)\n"
        "    Path(f'ready-{i}').write_text('')\n    if i == 1: time.sleep(600)  # here\n    dist.all_reduce(torch.ones(4))\n"
        "if __name__ == '__main__': mp.spawn(work, args=(os.path.abspath('store'),), nprocs=2)\n"
    )
    job = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: all((tmp_path / f"ready-{r}").exists() for r in range(2)), 45)
        judged = look(job.pid, tmp_path)
        assert culprits(judged) == (Outcome.STALLED, (1,), line_of(script, "# here"))
    finally:
        for process in descendants_of(job.pid):
            os.kill(process.pid, signal.SIGKILL)
        job.kill()
        job.wait()


def test_a_rank_that_ends_during_the_look_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_look(*given: Any, **options: Any) -> dict[int, list[dict[str, Any]]]:
        """What is seen of it while it lives; then it ends."""
        monkeypatch.undo()
        found = looks.take_stacks(*given, **options)
        (tmp_path / "end").write_text("")
        return found

    os.mkfifo(tmp_path / "end")
    program = "ready()\nif rank == 1:\n    Path('end').read_text()\n    os._exit(0)\nstep()\n"
    with running(tmp_path, program) as (job, _):
        monkeypatch.setattr(looks, "take_stacks", first_look)
        judged = look(job.pid, tmp_path)
    assert judged.diagnosis.outcome in (Outcome.UNKNOWN, Outcome.STALLED)
    assert not {0, 2} & {r for f in judged.diagnosis.findings for r in f.culprit_ranks}


def test_without_the_right_to_see_stacks_states_are_left_and_one_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unhang.attach.looks.take_stacks", lambda *_, **__: {})
    monkeypatch.setattr("unhang.attach.folder.missing_right", lambda _: "it belongs to root: run 'sudo unhang attach'")
    with running(tmp_path, "ready()\nif rank == 1: time.sleep(600)\nstep()") as (job, _):
        monkeypatch.setattr("unhang.attach.spawned_ranks", _known_ranks(job.pid))
        judged = look(job.pid, tmp_path, 1)
    assert judged.diagnosis.outcome is Outcome.UNKNOWN
    assert not judged.diagnosis.findings
    (why,) = [a.reason for a in judged.case.absent if a.what.startswith("stacks of")]
    assert "sudo unhang attach" in why
    assert "states" in why
    assert all(e.state is not None for e in judged.case.ranks.values())


def _known_ranks(launcher: int):  # type: ignore[no-untyped-def]
    """The ranks of the launcher of the tests, whose forks have no number in /proc."""
    from unhang.attach.ranks import Rank

    def ranks(_, processes):  # type: ignore[no-untyped-def]
        pids = sorted(processes.children(launcher))
        return [Rank(i, len(pids), processes.by_pid[pid], i, len(pids)) for i, pid in enumerate(pids)]

    return ranks


def test_watching_says_when_it_stalls_and_ends_with_the_job(tmp_path: Path) -> None:
    program = "ready()\nfor _ in range(10**6):\n    step()\n    time.sleep(0.05)\n    if rank == 1 and Path('stop').exists(): time.sleep(600)"
    said: list[str] = []
    with running(tmp_path, program) as (job, _):

        def say(text: str) -> None:
            """Stops the job once it was seen to move, and ends it once it was seen to stand."""
            said.append(text)
            if text.startswith("MOVES"):
                (tmp_path / "stop").touch()
            elif text.startswith("STALLED"):
                for process in descendants_of(job.pid):
                    os.kill(process.pid, signal.SIGKILL)

        (found,), processes = jobs_wanted(Wish(str(job.pid)))
        wish = Wish(str(job.pid), for_s=2 * slowness())
        judged = watch(found, processes, tmp_path / "looked" / "bundle", wish, say, every_s=0.5)
    words = [text.split()[0] for text in said if text.split()[0].isupper()]
    assert set(words[: words.index("MOVES")]) <= {"UNKNOWN"}  # on a busy machine the first looks may not show it move
    assert words[-1] == "STALLED"
    assert said[-1] == "the job has ended"
    assert judged.diagnosis.findings[0].culprit_ranks == (1,)


def test_a_pid_becomes_one_file_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running(tmp_path, STALLS["sleeps"][0]) as (job, _):
        done = CliRunner().invoke(bundle, [str(job.pid), "-o", "sent.tar.gz"], standalone_mode=False)
        assert done.return_value == 0, done.output
        pid = CliRunner().invoke(diagnose, ["--pid", str(job.pid)], standalone_mode=False)
    sent = CliRunner().invoke(diagnose, ["sent.tar.gz"], standalone_mode=False)
    assert sent.stdout.splitlines()[0] == pid.stdout.splitlines()[0]
    assert pid.stdout.startswith("STALLED  rank 1")
    assert pid.return_value == sent.return_value == 1


def test_the_command_says_it_in_one_line_and_leaves_a_report(tmp_path: Path) -> None:
    """A job under a plain launcher with its variables in the environment, as torchrun gives them."""
    script = tmp_path / "job.py"
    script.write_text(BEGIN + "ready()\nif rank == 1: time.sleep(600)  # here\nstep()\n")
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env={**environment, "RANK": str(r)})
        for r in range(2)
    ]
    try:
        wait_until(lambda: all((tmp_path / f"ready-{r}").exists() for r in range(2)), 45)
        command = [sys.executable, "-m", "unhang", "attach", str(ranks[0].pid), "--for", str(2 * slowness())]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60 * slowness())
        assert done.returncode == 1, done.stderr
        first = done.stdout.splitlines()[0]
        assert first.startswith(f"STALLED  rank 1 is in its own code at <module> (job.py:{line_of(script, '# here')})")
        assert "and has not reached all_reduce" in first
        (report,) = (tmp_path / "unhang-reports").glob("attach-*")
        assert {"report.json", "report.html", "report.txt", "bundle"} <= {p.name for p in report.iterdir()}
        again = [sys.executable, "-m", "unhang", "diagnose", str(report), "--format", "text"]
        assert subprocess.run(again, capture_output=True, text=True, timeout=60).stdout.splitlines()[0] == first
    finally:
        for process in ranks:
            process.kill()
            process.wait()
