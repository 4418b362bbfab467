"""What the first fix says where no condition decides."""

from __future__ import annotations

from unhang.model import Frame
from unhang.rules.advice import fixes_of

_BACKWARD = Frame("/job/moe.py", 16, "backward")
_APPLY = Frame("/env/site-packages/torch/autograd/function.py", 325, "apply")


def test_a_call_of_an_own_backward_is_left_out_by_who_left_the_graph() -> None:
    first, *_ = fixes_of(Frame("/job/train.py", 48, "main"), None, "rank 2", (_BACKWARD, _APPLY))
    assert first.title == "Keep the exchange in the graph on every rank"
    assert first.advice.startswith("moe.py:16: ")


def test_a_function_that_is_only_called_backward_is_none() -> None:
    first, *_ = fixes_of(Frame("/job/train.py", 48, "main"), None, "rank 2", (_BACKWARD,))
    assert first.advice.startswith("train.py:48: find what led rank 2")
