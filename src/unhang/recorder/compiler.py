"""Keeps torch.compile out of our functions: it would spend time on them and warn about their content."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def do_not_trace(function: Any) -> Any:
    """A call of this function inside compiled code ends the graph, as torch.compiler.disable would have it."""
    function._torchdynamo_disable = True
    return function


def skip_our_frames(eval_frame: Any) -> None:
    """Tell the frame evaluator to run all our code as it is; called when the program loads torch._dynamo."""
    skip = eval_frame.skip_code
    package = __name__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.startswith(package):
            for code in _codes_of(module):
                skip(code)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
