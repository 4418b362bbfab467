"""Which exception of a log came first."""

from __future__ import annotations

import pytest

from unhang.analyze.lines.first_errors import errors_of, first_error, is_log_only, ranks_of, went_on
from unhang.analyze.lines.log_progress import behind_in_steps
from unhang.analyze.lines.pasted import doings_of
from unhang.analyze.situation import Situation
from unhang.read.logs.case import log_case
from unhang.testing import make_case

TRACE = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in f\n    g()\n'
END = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 3 (pid: 7) of binary: python\n"


def situation(text: str) -> Situation:
    return Situation(log_case(text))


def on_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("ValueError: bad", "primary"),
        ("RuntimeError: [..pair.cc:598] Connection closed by peer [10.0.0.1]:1", "echo"),
        ("torch.distributed.DistBackendError: NCCL error: unhandled system error", "echo"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "echo"),
        ("KeyboardInterrupt", "told"),
    ],
)
def test_kinds(last, kind):
    (error,) = errors_of(situation(TRACE + last))
    assert error.kind == kind


def test_the_first_by_place_not_by_rank():
    s = situation(on_rank(0, TRACE + "RuntimeError: Connection closed by peer") + on_rank(5, TRACE + "KeyError: 3"))
    first = first_error(s)
    assert first is not None
    assert (first.rank, first.error.type) == (5, "KeyError")


def test_the_launcher_tells_whose_it_was():
    s = situation(TRACE + "ValueError: bad\n" + END)
    first = first_error(s)
    assert first is not None
    assert ranks_of(s, first) == (3,)


def test_several_failed_and_one_error_tell_nobody():
    s = situation(TRACE + "ValueError: bad\n" + END + END.replace("local_rank: 3", "local_rank: 1"))
    first = first_error(s)
    assert first is not None
    assert ranks_of(s, first) == ()


def test_the_program_went_on():
    steps = "".join(f"step {i}, loss 0.5\n" for i in range(5))
    s = situation(TRACE + "ValueError: bad\n" + steps)
    assert went_on(s, errors_of(s)[0])
    assert first_error(s) is None


def test_another_rank_went_on_for_a_while():
    s = situation(
        on_rank(2, TRACE + "ValueError: bad") + on_rank(0, "step 5, loss 0.5\nstep 6, loss 0.5\nstep 7, loss 0.5")
    )
    assert first_error(s) is not None


def test_an_exception_that_python_could_not_raise():
    s = situation("Exception ignored in: <function f>\n" + TRACE + "TimeoutError: over\nValueError: later")
    assert [e.error.type for e in errors_of(s)] == ["ValueError"]


def test_a_last_line_alone_counts_where_no_traceback_has_it():
    s = situation(TRACE + "ValueError: bad\nValueError: bad\nKeyError: 4\n")
    assert [(e.error.type, e.is_line) for e in errors_of(s)] == [("ValueError", False), ("KeyError", True)]


def test_log_only():
    assert is_log_only(situation(TRACE + "ValueError: bad"))
    assert not is_log_only(Situation(make_case({0: ["barrier"]})))


def test_behind_in_steps():
    lines = "".join(f"step {i}, loss 1, cuda:{r}\n" for i in (1, 2) for r in (0, 1, 2) if (i, r) != (2, 1))
    found = behind_in_steps(situation(lines))
    assert found is not None
    assert found.rank == 1
    assert behind_in_steps(situation(lines + "step 2, loss 1, cuda:1\n")) is None
    assert behind_in_steps(situation("step 1, loss 1, cuda:0\nstep 2, loss 1, cuda:1\n")) is None


STACK = """rank {}:
    {} ({})
    main (app/train.py:4)
"""


@pytest.mark.parametrize(
    ("function", "place", "kind"),
    [
        ("all_gather_object", "torch/distributed/distributed_c10d.py:3075", "collective"),
        ("_engine_run_backward", "torch/autograd/graph.py:769", "collective"),
        ("destroy_process_group", "torch/distributed/distributed_c10d.py:2184", "ending"),
        ("_try_get_data", "torch/utils/data/dataloader.py:1310", "loader"),
        ("acquire", "filelock/_api.py:182", "lock"),
        ("gather", "app/arrays.py:3", "user"),
    ],
)
def test_what_a_pasted_stack_shows(function, place, kind):
    (doing,) = doings_of(situation(STACK.format(0, function, place)))
    assert (doing.kind, doing.ranks) == (kind, (0,))


def test_an_interrupted_launcher_shows_nothing():
    text = 'Traceback (most recent call last):\n  File "/env/torch/multiprocessing/spawn.py", line 78, in join\nKeyboardInterrupt\n'
    assert doings_of(situation(text)) == ()


def test_of_a_chain_each_exception_keeps_its_place():
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    text = TRACE + "KeyError: 'w'\n" + chained + TRACE.replace("line 3", "line 8") + "ValueError: no such weight\n"
    seen = errors_of(situation(text))
    assert [(e.error.type, [f.line for f in e.error.frames], e.is_line) for e in seen] == [
        ("KeyError", [3], False),
        ("ValueError", [8], False),
    ]
    many = chained.join(TRACE + f"KeyError: 'w{i}'\n" for i in range(3000))
    assert len(errors_of(situation(many))) > 1


WAIT = (
    "[E ProcessGroupNCCL.cpp:828] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)
PROCESS = "--------\nmpirun detected that one or more processes exited with non-zero status. The first process to do so was:\n\n"


def whose(text: str) -> tuple[int, ...]:
    s = situation(text)
    first = first_error(s)
    assert first is not None
    return ranks_of(s, first)


def test_an_exception_without_a_rank_is_of_the_one_that_did_not_wait_with_the_others():
    raised = TRACE + "ValueError: bad\n"
    assert whose(raised + WAIT.format(0) + WAIT.format(1) + WAIT.format(3)) == (2,)
    assert whose(raised + WAIT.format(0) + WAIT.format(1) + WAIT.format(2)) == ()
    assert whose(raised + WAIT.format(0) + WAIT.format(4) + WAIT.format(2)) == ()
    assert whose(raised + WAIT.format(1)) == ()


def test_an_exception_without_a_rank_is_of_whom_mpirun_saw_end_first():
    assert whose(TRACE + "ValueError: bad\n" + PROCESS + "  Process name: [[51734,1],37]\n  Exit code:    1\n") == (37,)


def test_as_many_exceptions_as_ranks_are_of_all():
    world = "[launch.py:163:main] dist_world_size=2\n"
    assert whose(world + 2 * (TRACE + "ValueError: bad\n")) == (0, 1)
    assert whose(world + TRACE + "ValueError: bad\n") == ()


@pytest.mark.parametrize(("size", "ranks"), [(2, (0, 1)), (4, (3,))])
def test_all_have_raised_though_the_launcher_saw_one_end_first(size, ranks):
    s = situation(f"using world size: {size}, backend: nccl\n" + (TRACE + "ValueError: bad\n") * 2 + END)
    first = first_error(s)
    assert first is not None
    assert ranks_of(s, first) == ranks


def test_two_ranks_that_raise_in_one_line_have_one_fault():
    two = on_rank(1, TRACE + "FileNotFoundError: [Errno 2] No such file or directory: 'a'")
    two += on_rank(3, TRACE + "FileNotFoundError: [Errno 2] No such file or directory: 'b.bin'")
    assert whose(two) == (1, 3)
    assert whose(two.replace("line 3", "line 4", 1)) == (1,)


def test_processes_of_the_whole_job_are_its_ranks_in_the_order_of_their_numbers():
    stack = 'Process {0}: python train.py\nThread {0} (idle): "MainThread"\n    wait (threading.py:302)\n    f (train.py:{1})\n'
    world = "using world size: 2, data-parallel-size: 1\n"
    both = stack.format(812, 7) + stack.format(811, 9)
    assert [d.ranks for d in doings_of(situation(world + both))] == [(1,), (0,)]
    assert [d.ranks for d in doings_of(situation(both))] == [(), ()]
    assert [d.ranks for d in doings_of(situation(world.replace("2", "4") + both))] == [(), ()]
