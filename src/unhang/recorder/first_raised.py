"""The exception with which a failure began, where another was raised on the way out: in a clean-up, or from a lost peer."""

from __future__ import annotations

import ast
import dis
import linecache
from types import TracebackType

from .frames import traceback_places

_MOST_EARLIER = 8
_LARGEST_BYTES = 2_000_000


def first_raised(error: BaseException) -> tuple[BaseException, list[list[object]]]:
    """The first exception of the chain that nobody had handled, and all its frames, innermost first.

    One that was raised while the program handled another is the program's own, and stays.
    """
    outer: list[list[object]] = []
    for _ in range(_MOST_EARLIER):
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        common = _common(earlier, error)
        if earlier is None or common is None or not _was_on_its_way(earlier, common):
            break
        outer = traceback_places(error.__traceback__)[_depth(common) :] + outer
        error = earlier
    return error, traceback_places(error.__traceback__) + outer


def _common(earlier: BaseException | None, later: BaseException) -> TracebackType | None:
    """Where the later exception passed the frame in which the earlier one was last seen."""
    seen = earlier.__traceback__ if earlier is not None else None
    at = later.__traceback__
    while seen is not None and at is not None and at.tb_frame is not seen.tb_frame:
        at = at.tb_next
    return at if seen is not None else None


def _depth(trace: TracebackType) -> int:
    """How many frames there are from here to the innermost."""
    found, at = 0, trace.tb_next
    while at is not None:
        found, at = found + 1, at.tb_next
    return found + 1


def _was_on_its_way(earlier: BaseException, common: TracebackType) -> bool:
    """Whether the later exception replaced the earlier in the end of a `with`, in a `finally`, or said anew what a collective said."""
    if common.tb_next is None:
        if _is_raise(common) and _is_of_distributed(earlier):
            return True
    elif common.tb_next.tb_frame.f_code.co_name in ("__exit__", "__aexit__"):
        return True
    first = earlier.__traceback__
    file = common.tb_frame.f_code.co_filename
    return first is not None and _is_in_finally(file, first.tb_lineno, common.tb_lineno)


def _is_raise(trace: TracebackType) -> bool:
    """Whether the program itself raised here, and not a function that was written in C."""
    code, at = trace.tb_frame.f_code.co_code, trace.tb_lasti
    return 0 <= at < len(code) and code[at] == dis.opmap["RAISE_VARARGS"]


def _is_of_distributed(error: BaseException) -> bool:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    file = at.tb_frame.f_code.co_filename if at is not None else ""
    return "torch/distributed/" in file or file.startswith(__file__.rpartition("/")[0])


def _is_in_finally(file: str, first: int, later: int) -> bool:
    """Whether the later line lies in the `finally` of a `try` that holds the first."""
    text = "".join(linecache.getlines(file))
    if not 0 < len(text) < _LARGEST_BYTES:
        return False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Try) and node.finalbody:
            begin, end = node.finalbody[0].lineno, node.finalbody[-1].end_lineno or 0
            if node.lineno <= first < begin <= later <= end:
                return True
    return False
