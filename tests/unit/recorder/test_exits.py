from __future__ import annotations

from pathlib import Path

import pytest
from jobs import environment, forked, header, python, rank_folder, read_json, read_lines, warm_python, write

from unhang.inside.recorder import recording

INIT = """
import os, sys, time, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
rank = dist.get_rank()
"""

# Every way to end, many times, each with the interpreter's whole finalisation: one process, forks that all become ranks.
MANY = """
import os, sys, time
import torch, torch.distributed as dist

def end(how):
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    if how == 0: return
    if how == 1: sys.exit(3)
    if how == 2: raise ValueError("uncaught")
    if how == 3: os._exit(4)

for number in range(8):
    pid = os.fork()
    if pid == 0:
        end(number % 4)
        break
    started = time.monotonic()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == (0, 3, 1, 4)[number % 4], (number, code)
    assert time.monotonic() - started < 20
"""


def test_every_kind_of_end_many_times(tmp_path: Path, run_dir: Path) -> None:
    ended = python(write(tmp_path, "many.py", MANY), env=environment(run_dir))
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("ValueError: uncaught") == 2
    assert "WorkerServer" not in ended.stderr
    assert len(list(run_dir.glob("ranks/r0-*"))) == 8
    seen = [read_json(p) for p in run_dir.glob("ranks/r0-*/exit.json")]
    assert (
        sorted((e["kind"], e["code"]) for e in seen if e["kind"] != "exit")
        == [("os._exit", 4)] * 2 + [("sys.exit", 3)] * 2
    )
    assert sum(e["kind"] == "exit" and e["code"] is None for e in seen) == 2
    assert sum(e["kind"] == "exit" and e["code"] == 1 for e in seen) == 2
    assert len(list(run_dir.glob("ranks/*/error.json"))) == 2
    assert len(list(run_dir.glob("ranks/*/flight_exit.pickle"))) == 8
    assert list(run_dir.glob("ranks/*/notes.jsonl")) == []
    assert sum(header(f)[recording.ENDED] for f in run_dir.glob("ranks/*")) == 6


def test_uncaught_exception_in_a_plain_rank(tmp_path: Path, run_dir: Path) -> None:
    script = "import torch\ndef step():\n    raise RuntimeError('loss is nan')\nstep()\n"
    path = write(tmp_path, "train.py", script)
    ended = python(path, env=environment(run_dir, RANK="3", WORLD_SIZE="4"))
    assert ended.code == 1
    assert ended.stderr.count("RuntimeError: loss is nan") == 1
    folder = rank_folder(run_dir, 3)
    error = read_json(folder / "error.json")
    assert (error["type"], error["message"], error["thread"]) == ("RuntimeError", "loss is nan", "MainThread")
    assert error["frames"] == [[str(path), 3, "step"], [str(path), 4, "<module>"]]
    assert error["text"].startswith("Traceback")
    assert (read_json(folder / "exit.json")["kind"], read_json(folder / "exit.json")["code"]) == ("exit", 1)
    assert header(folder)[recording.INITIALIZED] == 0, "announced before init_process_group"
    assert header(folder)[recording.ENDED] == 1


def test_rank_given_to_init_is_the_truth(tmp_path: Path, run_dir: Path) -> None:
    script = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    def leave():
        sys.exit("message")
    leave()
    """
    ended = warm_python(write(tmp_path, "t.py", script), env=environment(run_dir, SLURM_PROCID="7"))
    assert (ended.code, ended.stderr) == (1, "message\n")
    folder = rank_folder(run_dir, 0)
    assert read_json(folder / "identity.json")["rank"] == 0
    assert not list(run_dir.glob("ranks/r7-*"))
    left = read_json(folder / "exit.json")
    assert (left["kind"], left["code"], left["frames"][0][2]) == ("sys.exit", 1, "leave")
    assert header(folder)[recording.INITIALIZED] == 1
    assert [g["pg_name"] for g in read_lines(folder / "groups.jsonl")] == ["0", "0"]


KILLS = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def end(how):
    if how == "group": os.killpg(os.getpgrp(), signal.SIGKILL)
    if how == "own": os.kill(os.getpid(), signal.SIGKILL)
    if how == "asks": os.kill(os.getpid(), 0)
    if how == "handled":
        signal.signal(signal.SIGTERM, lambda *_: None)
        os.kill(os.getpid(), signal.SIGTERM)
end(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("how", "kind", "code"),
    [("group", "kill", -9), ("own", "kill", -9), ("asks", "exit", None), ("handled", "exit", None)],
)
def test_a_signal_to_itself_is_noted(tmp_path: Path, run_dir: Path, how: str, kind: str, code: int | None) -> None:
    ended = python(write(tmp_path, "kills.py", KILLS), how, env=environment(run_dir))
    assert ended.code == (code or 0)
    left = read_json(rank_folder(run_dir, 0) / "exit.json")
    assert (left["kind"], left["code"]) == (kind, code)
    assert [frame[2] for frame in left["frames"]] == (["end", "<module>"] if kind == "kill" else [])


def test_error_in_a_thread_and_a_replaced_hook(tmp_path: Path, run_dir: Path) -> None:
    script = """
    import os, sys, threading, torch
    if os.environ["RANK"] == "0":
        thread = threading.Thread(target=lambda: 1 / 0, name="prefetch")
        thread.start(); thread.join()
    else:
        sys.excepthook = lambda *_: None
        raise KeyError("lost")
    """
    path = write(tmp_path, "train.py", script)
    warm_python(path, env=environment(run_dir, RANK="0"))
    python(path, env=environment(run_dir, RANK="1"))
    assert read_json(rank_folder(run_dir, 0) / "error.json")["thread"] == "prefetch"
    assert read_json(rank_folder(run_dir, 1) / "error.json")["message"] == "'lost'"


def test_fork_launcher_catches_and_leaves(tmp_path: Path, run_dir: Path) -> None:
    script = INIT + "def leave():\n    os._exit(7)\nif rank == 0: leave()\nraise ValueError('mine')\n"
    ended = forked(tmp_path, run_dir, script)
    assert ended.codes == [7, 1]
    left = read_json(rank_folder(run_dir, 0) / "exit.json")
    assert (left["kind"], left["code"], left["frames"][0][2]) == ("os._exit", 7, "leave")
    (handled,) = read_lines(rank_folder(run_dir, 1) / "handled.jsonl")
    assert (handled["type"], handled["frames"][0][0]) == ("ValueError", str(tmp_path / "train.py"))


UNUSED = (
    INIT
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.used(x)
model = torch.nn.parallel.DistributedDataParallel(Net())
def main():
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
import multiprocessing
try:
    main()
except RuntimeError as error:
    print("caught", type(error))
"""
)


def test_names_of_unused_parameters(tmp_path: Path, run_dir: Path) -> None:
    ended = forked(tmp_path, run_dir, UNUSED)
    assert ended.codes == [0, 0], ended.stderr
    (entry,) = read_lines(rank_folder(run_dir, 0) / "handled.jsonl")
    assert entry["parameters"] == ["head.weight", "head.bias"]


SPAWN = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, how):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.barrier()
    if rank == 1:
        raise LookupError("in the child")
if __name__ == "__main__":
    how = sys.argv[1]
    if how == "torch":
        mp.start_processes(work, args=(how,), nprocs=2, start_method=sys.argv[2])
    else:
        children = [mp.get_context(sys.argv[2]).Process(target=work, args=(r, how), name=f"w{r}") for r in range(2)]
        [c.start() for c in children]; [c.join() for c in children]
        print([c.exitcode for c in children])
"""


@pytest.mark.parametrize(
    ("how", "method"),
    [
        pytest.param(
            "torch", "spawn", marks=pytest.mark.whole
        ),  # spawned ranks under `unhang run`: tests/ranks/test_launchers.py
        ("torch", "fork"),
        ("process", "fork"),
    ],
)
def test_multiprocessing_children(tmp_path: Path, run_dir: Path, how: str, method: str) -> None:
    path = write(tmp_path, "spawn.py", SPAWN)
    ended = (python if method == "spawn" else warm_python)(path, how, method, env=environment(run_dir))
    assert "in the child" in ended.stderr
    error = read_json(rank_folder(run_dir, 1) / "error.json")
    assert (error["type"], error["message"], error["frames"][0][2]) == ("LookupError", "in the child", "work")
    zero = rank_folder(run_dir, 0)
    assert not (zero / "error.json").exists()
    if how == "process":
        assert ended.stdout == "[0, 1]\n"
        left = read_json(zero / "exit.json")
        assert (left["kind"], left["code"]) == ("exit", 0)
    assert len(list(run_dir.glob("ranks/*"))) == 2


@pytest.mark.whole
@pytest.mark.torchrun
def test_torchrun(tmp_path: Path, run_dir: Path) -> None:
    script = """
    import torch, torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main():
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            raise LookupError("under torchrun")
    main()
    """
    arguments = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        write(tmp_path, "t.py", script),
    )
    ended = python(*arguments, env=environment(run_dir))
    assert ended.code == 1
    error = read_json(rank_folder(run_dir, 1) / "error.json")
    assert (error["type"], error["frames"][0][2]) == ("LookupError", "main")
    assert len(list(run_dir.glob("ranks/*"))) == 2, "the launcher is no rank"


@pytest.mark.parametrize("bad", ["missing-and-impossible", "file"])
def test_folder_that_cannot_be_made_does_no_harm(tmp_path: Path, bad: str) -> None:
    (tmp_path / "file").write_text("")
    folder = "/proc/no/such" if bad != "file" else str(tmp_path / "file" / "run")
    script = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier(); dist.new_group([0]); dist.destroy_process_group()
    try: 1 / 0
    except ZeroDivisionError: print("fine")
    raise SystemExit(5)
    """
    ended = warm_python(write(tmp_path, "t.py", script), env=environment(folder, RANK="0"))
    assert (ended.stdout, ended.stderr, ended.code) == ("fine\n", "", 5)


def test_disk_that_becomes_full_or_read_only(tmp_path: Path, run_dir: Path) -> None:
    script = """
    import os, shutil, torch, torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    shutil.rmtree(os.environ["UNHANG_RUN_DIR"])
    dist.new_group([0])
    try: 1 / 0
    except ZeroDivisionError: print("fine")
    dist.destroy_process_group()
    """
    ended = warm_python(write(tmp_path, "t.py", script), env=environment(run_dir, RANK="0"))
    assert (ended.stdout, ended.stderr, ended.code) == ("fine\n", "", 0)


TRACEBACKS = (
    INIT
    + """
import datetime, traceback
store, short = dist.HashStore(), datetime.timedelta(milliseconds=50)
def told(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error.__context__)
        traceback.print_exc(file=sys.stdout)
batches = torch.utils.data.DataLoader([1, "x"], batch_size=2)
if rank == 0:
    told(lambda: store.wait(["never"], short))
    told(lambda: dist.init_process_group("gloo"))
    told(lambda: dist.new_group([7]))
    told(lambda: dist.send(torch.ones(1), 0))
    told(lambda: dist.isend(torch.ones(1), 0))
    told(lambda: next(iter(batches)))
    told(lambda: torch.ones(1).backward())
    told(lambda: dist.all_reduce(torch.ones(1), async_op=True).wait())
    sys.stdout.flush()
os._exit(0)
"""
)


def test_no_frame_of_ours_is_in_a_traceback(tmp_path: Path, run_dir: Path) -> None:
    ended = forked(tmp_path, run_dir, TRACEBACKS)
    assert ended.codes == [0, 0], ended.stderr
    assert ended.stdout.count("Traceback (most recent call last)") == 8, ended.stdout
    assert ended.stdout.count(" None\n") == 8, "and nothing is chained to what is raised"
    assert "/recorder/" not in ended.stdout


HELD = (
    INIT
    + """
class Shy(ValueError):
    def __str__(self):
        print("asked")
        return "secret"
def ask():
    import socket
    page = os.path.join(os.environ["UNHANG_RUN_DIR"], "ranks", f"r{rank}-{os.getpid()}")
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if os.path.exists(page + "/held.json"): os.unlink(page + "/held.json")
    link.sendto(b"dump", page + "/ctl.sock")
    time.sleep(0.5)
    return os.path.exists(page + "/held.json")
if rank == 0:
    assert not ask()
    try:
        try:
            raise Shy("bad", "sample")
        finally:
            ask()
    except Shy:
        os._exit(0)
os._exit(0)
"""
)


def test_an_exception_that_waits_in_a_finally_is_told_and_not_asked(tmp_path: Path, run_dir: Path) -> None:
    ended = forked(tmp_path, run_dir, HELD)
    assert ended.codes == [0, 0], ended.stderr
    held = read_json(rank_folder(run_dir, 0) / "held.json")
    assert (held["type"], held["message"]) == ("Shy", "bad sample")
    assert (held["frames"][0][1] + 2, held["handler"][2]) == (held["handler"][1], "<module>")
    assert "asked" not in ended.stdout


HANDLER_IN_A_FORK = """
import os, signal
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"handled"))
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_handler_of_the_program_is_still_there_in_a_fork(tmp_path: Path, run_dir: Path) -> None:
    ended = python(write(tmp_path, "handler.py", HANDLER_IN_A_FORK), env=environment(run_dir))
    assert (ended.code, ended.stdout) == (0, "handled"), ended.stderr
