"""Exceptions that Python ignored, as in a destructor: what they say ended nothing."""

from __future__ import annotations

from unhang.diagnosis import judge
from unhang.testing import log_case

_FRAME = '  File "/venv/torch/utils/data/_utils/signal_handling.py", line 73, in handler\n'
_KILLED = "RuntimeError: DataLoader worker (pid 1710233) is killed by signal: Killed."
_RAISED = f"Traceback (most recent call last):\n{_FRAME}    _error_if_any_worker_fails()\n{_KILLED}\n"
_IGNORED = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f3a1c2d4ea0>\n"
_STEPS = "step 1 loss 2.31\nstep 2 loss 2.11\n"


def causes(text: str) -> list[str]:
    return [finding.cause for finding in judge(log_case(text)).findings]


def test_what_a_destructor_raised_is_no_cause() -> None:
    assert causes(_STEPS + _IGNORED + _RAISED) == []


def test_the_same_is_one_where_it_was_not_ignored() -> None:
    assert causes(_STEPS + _RAISED) == ["host-oom"]


def test_only_the_first_exception_behind_the_word_is_ignored() -> None:
    assert causes(_STEPS + _IGNORED + _RAISED + _STEPS + _RAISED) == ["host-oom"]
