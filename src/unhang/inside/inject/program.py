"""The program as a fault sees it: who this process is in the job, how far its training is, and the places at which a fault can strike.

Faults put listeners at the places; the calls are replaced once, for all of them.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..rank import RANK, WORLD_SIZE, number_from, with_group

_STDLIB = tuple({os.path.dirname(os.path.abspath(os.__file__)), os.path.dirname(os.path.realpath(os.__file__))})
_FOREIGN = ("/site-packages/", "/dist-packages/", "/unhang/inside/")

steps = 0
"""Optimizer steps that this process has done."""
is_helper = False
"""Whether this process was forked from a rank: a worker of its loader."""
_has_joined = False
_given: tuple[int, int] | None = None


def joined(number: object, size: object) -> None:
    """This process calls init_process_group: it is a rank. Both are -1 where the environment holds them."""
    global is_helper, _has_joined, _given
    is_helper, _has_joined = False, True
    if isinstance(number, int) and isinstance(size, int) and 0 <= number < size:
        _given = number, size


def forked() -> None:
    """This process has just been forked."""
    global is_helper, _has_joined
    is_helper, _has_joined = is_helper or _has_joined, False


def _group() -> Any:
    return None if is_helper else with_group()


def rank() -> int | None:
    """The global rank; 0 in a program that nobody launched; None where only init_process_group will show it."""
    dist = _group()
    if dist is not None:
        return int(dist.get_rank())
    if _given:
        return _given[0]
    number = number_from(RANK)
    return 0 if number is None and number_from(WORLD_SIZE) is None else number


def world_size() -> int:
    """The number of ranks; 1 where it is unknown."""
    dist = _group()
    if dist is not None:
        return int(dist.get_world_size())
    return _given[1] if _given else number_from(WORLD_SIZE) or 1


def is_program(file: str) -> bool:
    """Whether code of this file is the program's own."""
    return not file.startswith(("<", *_STDLIB)) and not any(part in file for part in _FOREIGN)


def program_line() -> tuple[str, int] | None:
    """File and line of the program that the calling thread executes."""
    at: FrameType | None = sys._getframe(1)
    while at is not None:
        if is_program(at.f_code.co_filename):
            return at.f_code.co_filename, at.f_lineno
        at = at.f_back
    return None


def at_line(place: tuple[str, int] | None, action: Callable[[], Any]) -> Any:
    """Calls a function as if that line of the program did, so that stacks and tracebacks show where the fault was put."""
    if place is None:
        return action()
    names: dict[str, Any] = {"action": action}
    exec(compile("\n" * (place[1] - 1) + "result = action()", place[0], "exec", dont_inherit=True), names)
    return names["result"]


TRANSFERS = ("send", "recv", "isend", "irecv")
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "broadcast_object_list",
    "all_gather_object", "gather_object", "scatter_object_list", "batch_isend_irecv",
    "all_gather_single", "reduce_scatter_single",  # where this torch has them
)  # fmt: skip
_OTHERS = ("new_group", "init_process_group")

Listener = Callable[[Any], None]
calls: list[Callable[[Call], None]] = []
"""Asked before every call of the functions above that the program makes."""
at_step: list[Listener] = []
"""Asked when an optimizer is about to step, with the optimizer."""
stepped: list[Listener] = []
"""Asked when an optimizer has stepped."""
batches: list[Callable[[Callable[[], Any]], Callable[[], Any]]] = []
"""Each may put something around the function that gets the next batch."""
items: list[Listener] = []
"""Asked in the process that reads the samples of a batch."""
writes: list[Callable[[str], None]] = []
"""Asked before torch.save, and before the program opens a file to write, with the name of the function."""
forwards: list[Listener] = []
"""Asked before a module computes."""
_here = threading.local()


class Call:
    """One call of a function of torch.distributed, before it is made."""

    def __init__(self, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name = name
        self._original = original
        self._args = args
        self._kwargs = kwargs
        self._after: list[Callable[[], Any]] = []
        self.is_skipped = False
        self.change_result: Callable[[Any], Any] | None = None

    def get(self, name: str) -> Any:
        """An argument by its name; None where the function has none of that name."""
        bound = inspect.signature(self._original).bind(*self._args, **self._kwargs)
        bound.apply_defaults()
        return bound.arguments.get(name)

    def put(self, **changed: Any) -> None:
        """Replaces arguments."""
        bound = inspect.signature(self._original).bind(*self._args, **self._kwargs)
        bound.arguments.update(changed)
        self._args, self._kwargs = bound.args, bound.kwargs

    def then(self, action: Callable[[], Any]) -> None:
        """Has something done after the call."""
        self._after.append(action)

    def make(self) -> Any:
        """Makes the call itself."""
        return self._original(*self._args, **self._kwargs)

    def run(self) -> Any:
        """Makes the call unless it is skipped, and what was put after it."""
        if self.is_skipped:
            result: Any = Done() if self.name in ("isend", "irecv") or self.get("async_op") else None
        else:
            result = self.make()
        for action in self._after:
            action()
        return self.change_result(result) if self.change_result else result


class Done:
    """Stands for the work of a call that was not made, or that nobody waits for."""

    def wait(self, *_: Any, **__: Any) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """Claims to be done."""
        return True


def in_the_dark(action: Callable[[], Any]) -> Any:
    """Calls a function whose collectives are not the program's own."""
    before, _here.is_inside = getattr(_here, "is_inside", False), True
    try:
        return action()
    finally:
        _here.is_inside = before


def _is_guard() -> bool:
    """Whether the caller of the replaced function is one of our guards: its calls are not the program's."""
    return "/unhang/inside/guards/" in sys._getframe(2).f_code.co_filename


def _listened(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "is_inside", False) or (is_helper and name != "init_process_group") or _is_guard():
            return original(*args, **kwargs)
        made = Call(name, original, args, kwargs)
        if name == "init_process_group":
            joined(made.get("rank"), made.get("world_size"))
        _here.is_inside = True
        try:
            for listener in calls:
                listener(made)
            return made.run()
        finally:
            _here.is_inside = False

    return call


def watch_distributed(dist: Any) -> None:
    """Replaces the functions of torch.distributed, in both modules that have them: P2POp compares them by identity."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for name in (*TRANSFERS, *COLLECTIVES, *_OTHERS):
        original = getattr(dist, name, None)
        if original is not None and c10d is not None:
            replacement = _listened(name, original)
            for module in (dist, c10d):
                if getattr(module, name, None) is original:
                    setattr(module, name, replacement)


def watch_optimizers(module: Any) -> None:
    """Counts the steps of the program's optimizers."""
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Any, *_: Any) -> None:
    in_the_dark(lambda: _tell(at_step, optimizer))


def _after_step(optimizer: Any, *_: Any) -> None:
    global steps
    steps += 1
    _tell(stepped, optimizer)


def _tell(listeners: list[Listener], what: Any) -> None:
    for listener in listeners:
        listener(what)


def watch_loaders(module: Any) -> None:
    """Stands between the loop over a loader and the loader."""
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
        kind._next_data = _fetched(kind._next_data)


def _fetched(original: Any) -> Any:
    @functools.wraps(original)
    def _next_data(self: Any) -> Any:
        fetch: Callable[[], Any] = functools.partial(original, self)
        for wrap in batches:
            fetch = wrap(fetch)
        return fetch()

    return _next_data


def watch_fetchers(module: Any) -> None:
    """Stands before the samples of a batch are read, in the worker if the loader has some."""
    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        kind.fetch = _told(kind.fetch, lambda fetcher, *_: _tell(items, fetcher))


def _told(original: Any, tell: Callable[..., None]) -> Any:
    """The function, after `tell` got its arguments."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        tell(*args)
        return original(*args, **kwargs)

    return call


def watch_files(serialization: Any) -> None:
    """Stands before torch.save, and before open() where the program itself opens a file to write."""
    serialization.save = _told(serialization.save, lambda *_: _tell(writes, "torch.save"))
    builtins.open = _opened(builtins.open)


def _opened(original: Any) -> Any:
    @functools.wraps(original)
    def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+") and is_program(sys._getframe(1).f_code.co_filename):
            _tell(writes, "open")
        return original(file, mode, *args, **kwargs)

    return open


def watch_modules(module: Any) -> None:
    """Stands before the forward of every module; only where a fault wants to know."""
    if forwards:
        module.register_module_forward_pre_hook(lambda module, _inputs: _tell(forwards, module))
