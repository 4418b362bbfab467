"""An exception is the same whatever program printed it: plain, in a group, in a process of Ray or of a server, in one line of a logger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from unhang.diagnosis import diagnose
from unhang.read.logs.catalogue import example_of, weighed_rows
from unhang.testing import judge, log_case

HEAD = ["[W] torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable", "epoch 0 step 100 loss 2.31"]
END = "E0718 10:12:55.410000 8372 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 3 (pid: 8401) of binary: python"
FRAMES = [
    '  File "/home/u/train.py", line 88, in <module>',
    "    main()",
    '  File "/home/u/model.py", line 17, in forward',
    "    return self.net(x)",
]
MESSAGES = {
    "launcher-misuse": "ValueError: World size 8 is not divisible by tp_size 3 * pp_size 2",
    "gpu-oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "user-exception": "KeyError: 'input_ids'",
}
Form = Callable[[str], Sequence[str]]


def plain(message: str) -> list[str]:
    return ["Traceback (most recent call last):", *FRAMES, message]


def in_a_group(message: str) -> list[str]:
    return [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/home/u/train.py", line 88, in <module>',
        "  |     main()",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        *(f"    | {line}" for line in plain(message)),
        "    +------------------------------------",
    ]


def of_ray(message: str) -> list[str]:
    return [f"(RayTrainWorker pid=8401, ip=10.0.0.3) {line}" for line in plain(message)]


def of_a_server(message: str) -> list[str]:
    return [
        f"(VllmWorker rank=3 pid=8401) ERROR 08-20 09:48:31 [multiproc_executor.py:487] {line}"
        for line in ("WorkerProc failed to start.", *plain(message))
    ]


def in_one_line(message: str) -> list[str]:
    return [f"2026-01-07 10:11:12,345 ERROR trainer.py:44 rank 3 failed: {message}"]


def in_the_summary(message: str) -> list[str]:
    """What torchrun quotes of a main function with `@record`, where the output of the rank went to a file of its own."""
    first, *rest = plain(message)
    return [
        END,
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-07-18_10:12:55",
        "  host      : node-a",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : 1 (pid: 8401)",
        "  error_file: /tmp/torchelastic_k2m1/none_v0x/attempt_0/3/error.json",
        f"  traceback : {first}",
        *(f"  {line}" for line in rest),
        "  ",
        "=" * 60,
    ]


@pytest.mark.parametrize("cause", MESSAGES)
@pytest.mark.parametrize("form", [plain, in_a_group, of_ray, of_a_server, in_one_line, in_the_summary])
def test_it_names_its_cause(form: Form, cause: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("\n".join([*HEAD, *form(MESSAGES[cause]), END]) + "\n")
    assert diagnose(log).findings[0].cause == cause


@pytest.mark.parametrize(
    ("between", "cause"),
    [
        ("The above exception was the direct cause of the following exception:", "launcher-misuse"),
        ("During handling of the above exception, another exception occurred:", "user-exception"),
    ],
)
def test_what_it_was_raised_from_names_its_cause(between: str, cause: str, tmp_path: Path) -> None:
    """What was only being handled may be of another way that the program had tried before."""
    log = tmp_path / "job.log"
    last = plain("hydra.errors.InstantiationException: Error in call to target 'train.Trainer'")
    log.write_text("\n".join([*HEAD, *plain(MESSAGES["launcher-misuse"]), "", between, "", *last, END]) + "\n")
    assert diagnose(log).findings[0].cause == cause


def test_the_summary_tells_whose_exception_it_is(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("\n".join([*HEAD, *in_the_summary(MESSAGES["user-exception"])]) + "\n")
    assert diagnose(log).findings[0].culprit_ranks == (3,)


def test_a_group_alone_is_an_exception(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("\n".join([*HEAD, *in_a_group(MESSAGES["gpu-oom"])[:4], END]) + "\n")
    assert diagnose(log).findings[0].cause == "user-exception"


@pytest.mark.whole
def test_what_the_catalogue_knows_of_an_exception_is_said_of_it(tmp_path: Path) -> None:
    """Of all messages that name a cause and are raised: a rule may know better, nobody is silent."""
    log, silent, other = tmp_path / "job.log", [], []
    raised = [(row, t) for row in weighed_rows() if row.cause and row.is_raised for t in row.templates]
    for row, template in raised:
        log.write_text("\n".join([*HEAD, *plain(f"RuntimeError: {example_of(template)}"), END]) + "\n")
        found = diagnose(log).findings
        cause = found[0].cause if found else "unknown"
        if cause == "unknown":
            silent.append(template)
        elif cause != row.cause:
            other.append((template, row.cause, cause))
    assert silent == []
    assert len(other) <= 0.02 * len(raised), other


_OF_A_TASK = """\
(Learner pid=4711) step 7: [Rank 1] loss 0.25
(Learner pid=4710) step 7: [Rank 0] loss 0.25
Traceback (most recent call last):
  File "/app/train.py", line 36, in main
    ray.get([x.fit.remote() for x in learners])
ray.exceptions.RayTaskError(ValueError): ray::Learner.fit() (pid={pid}, ip=10.0.0.2, repr=<learner.Learner object at 0x7f4a81c87850>)
  File "/app/learner.py", line 60, in fit
    loss = self.loss(again)
ValueError: no batch is left
Traceback (most recent call last):
  File "/app/train.py", line 42, in <module>
    main()
SystemExit: 1
"""


@pytest.mark.parametrize(("pid", "ranks"), [(4711, (1,)), (4712, ())], ids=["of a rank", "of another process"])
def test_what_a_driver_of_ray_tells_is_of_the_process_that_it_names(pid: int, ranks: tuple[int, ...]) -> None:
    found = judge(log_case(_OF_A_TASK.format(pid=pid))).findings[0]
    assert (found.cause, found.culprit_ranks) == ("user-exception", ranks)
    assert found.location is not None
    assert found.location.line == 60


# A task of Ray whose text a framework prints: the line with which a traceback begins is not there, and the exception's name is the most general.
_BARE_TASK = """\
Training errored after 0 iterations.
ray::Inner.train() (pid=5012, ip=10.0.0.2, actor_id=a3, repr=TorchTrainer)
  File "/app/trainable.py", line 331, in train
    raise skipped from exception_cause(skipped)
  File "/app/session.py", line 128, in load
    raise Exception("the archive ends early")
Exception: the archive ends early
"""


def test_a_task_of_ray_is_a_traceback_also_with_an_exception_of_no_name_of_its_own() -> None:
    found = judge(log_case(_BARE_TASK)).findings[0]
    assert found.cause == "user-exception"
    assert found.location is not None
    assert found.location.line == 128
    assert judge(log_case("ray::Inner.train() (pid=5012) is idle\nstep 1\nException: none so far\n")).findings == ()


def test_what_a_colon_at_the_end_of_a_message_announces_belongs_to_it() -> None:
    raised = [
        "RuntimeError: Critical error in pipeline:",
        "Error when executing Mixed operator ImageDecoder encountered:",
        "CUDA allocation failed",
    ]
    log = "\n".join([*plain(raised[0]), *raised[1:], "Current pipeline object is no longer valid."])
    assert judge(log_case(log)).findings[0].cause == "gpu-oom"
    assert (
        judge(log_case("\n".join([*plain(raised[0]), "step 8 loss 2.1", raised[2]]))).findings[0].cause
        == "user-exception"
    )
