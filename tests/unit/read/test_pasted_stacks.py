"""Stacks that were pasted into a log."""

from __future__ import annotations

import pytest

from unhang.model import Frame
from unhang.read.logs.pasted_stacks import PastedStack, pasted_stacks
from unhang.read.output_log import parse_output


def read(text: str) -> tuple[PastedStack, ...]:
    return pasted_stacks(parse_output(text.encode()).lines)


def test_ranks_under_headings():
    first, second = read(
        "TP0:\nall_reduce (torch/distributed/distributed_c10d.py:3075)\n  poll (cache.py:196)\n"
        "TP1-3:\nbroadcast (torch/distributed/distributed_c10d.py:2974)\n"
    )
    assert (first.label, first.ranks, second.ranks) == ("TP0", (0,), (1, 2, 3))
    assert first.frames == (
        Frame("torch/distributed/distributed_c10d.py", 3075, "all_reduce"),
        Frame("cache.py", 196, "poll"),
    )
    assert second.line.source.line == 5


def test_the_main_thread_of_py_spy_wherever_it_stands():
    (stack,) = read(
        'Process 77: python train.py --local-rank=2\nPython v3.10 (/usr/bin/python)\nThread 78 (idle): "worker"\n    run (a.py:1)\n'
        'Thread 77 (active+gil): "MainThread"\n    step (train.py:41)\n    main (train.py:9)\n'
    )
    assert (stack.label, stack.ranks) == ("process 77", (2,))
    assert [str(f) for f in stack.frames] == ["train.py:41 in step", "train.py:9 in main"]


@pytest.mark.parametrize("prompt", ["", "$ ", "[ops@gpu-n03 ~]$ ", "root@gpu-n03:/work# "])
def test_a_command_at_a_prompt_tells_the_rank_behind_it(prompt: str):
    (stack,) = read(
        f'{prompt}py-spy dump --pid 77 | head -20     # rank 17\nThread 77 (idle): "MainThread"\n    step (train.py:41)\n'
    )
    assert stack.ranks == (17,)


def test_the_stack_of_a_failed_collective_goes_on_without_the_name_of_its_rank():
    head = "[rank{}]:[E606 09:09:08.170090097 ProcessGroupNCCL.cpp:801] Stack trace of the failed collective: \n"
    frames = "#0 all_gather from /env/torch/distributed/distributed_c10d.py:4124\n#1 main from /app/train.py:{}\n"
    first, second = read(head.format(1) + frames.format(7) + head.format(0) + frames.format(9) + "\n")
    assert [(x.ranks, x.is_call, str(x.frames[-1])) for x in (first, second)] == [
        ((1,), True, "train.py:7 in main"),
        ((0,), True, "train.py:9 in main"),
    ]


def test_py_spy_names_a_process_whose_rank_other_lines_tell():
    (stack,) = read(
        "(Worker rank=3 pid=77, ip=10.0.0.4) ready\n(Worker rank=2 pid=76, ip=10.0.0.4) ready\n"
        'Process 77: ray::Worker\nThread 77 (active): "MainThread"\n    step (train.py:41)\n$ exit\n'
    )
    assert stack.ranks == (3,)


def test_an_actor_of_ray_trains_in_another_thread_than_the_one_that_serves_its_calls():
    (stack,) = read(
        'Process 9: ray::RayTrainWorker\nThread 9 (idle): "MainThread"\n    main_loop (ray/_private/worker.py:946)\n'
        'Thread 10 (idle): "Thread-1"\n    push (metrics.py:223)\n'
        'Thread 11 (idle): "TrainingThread"\n    get (multiprocessing/queues.py:113)\n    step (train.py:41)\n    run (threading.py:917)\n'
    )
    assert [f.function for f in stack.frames] == ["get", "step", "run"]


def test_faulthandler_and_its_current_thread():
    (stack,) = read(
        "Fatal Python error: Aborted\n\nThread 0x00007f01 (most recent call first):\n"
        '  File "/app/watch.py", line 3 in run\n\nCurrent thread 0x00007f02 (most recent call first):\n  File "/app/train.py", line 12 in main\n'
    )
    assert [str(f) for f in stack.frames] == ["train.py:12 in main"]


def test_threads_of_faulthandler_the_last_is_the_main_one():
    (stack,) = read(
        'Thread 0x00007f01 (most recent call first):\n  File "/app/watch.py", line 3 in run\n'
        'Thread 0x00007f02 (most recent call first):\n  File "/app/train.py", line 12 in main\n'
    )
    assert stack.frames[0].function == "main"


def test_gdb():
    (stack,) = read(
        "rank 1:\n#0  0x00007f in __futex_wait () from /lib/libpthread.so.0\n#1  0x00007e in ncclGroupEnd () from /lib/libnccl.so.2\n"
        "#2  main (argc=1, argv=0x7f) at main.c:12\n"
    )
    assert [f.function for f in stack.frames] == ["__futex_wait", "ncclGroupEnd", "main"]
    assert stack.frames[2].line == 12


def test_a_backtrace_of_cpp_is_none_of_gdb():
    assert (
        read(
            "C++ CapturedTraceback:\n#4 c10d::f() from ??:0\n#5 c10d::ProcessGroupNCCL::ncclCommWatchdog() from ??:0\n"
        )
        == ()
    )


def test_one_thread_alone():
    (stack,) = read('Stack (most recent call first):\n  File "/app/train.py", line 12 in main\n')
    assert (stack.is_printed, str(stack.frames[0])) == (True, "train.py:12 in main")


def test_ranks_by_the_prefix_of_the_lines():
    lines = ["Current thread 0x00007f02 (most recent call first):", '  File "/app/train.py", line 12 in main']
    text = "\n".join(f"[rank{rank}]: {line}" for rank in (0, 3) for line in lines)
    assert [s.ranks for s in read(text)] == [(0,), (3,)]


@pytest.mark.parametrize(
    "text",
    [
        "Epoch 3 (train.py:12)\nsaved (a/b.pt:3)\n",
        "rank 0: loss 2.3\nrank 1: loss 2.4\n",
        "Rank 3 failed to pass monitoredBarrier in 30000 ms\n",
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x\n',
        "",
    ],
)
def test_ordinary_lines_are_no_stacks(text):
    assert read(text) == ()
