"""Waits that the flight recorder does not show: keys of a store, and the completion of an isend or irecv."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from . import page, recording
from .compiler import do_not_trace
from .frames import record_text
from .recording import Recording, attempt

# Open isend and irecv calls: id of the Work -> (page, number of the record, what notices that the Work is dropped).
_open: dict[int, tuple[page.Page, int, Any]] = {}


def begin(rec: Recording, kind: int, peer: int, group: str, detail: str, tag: int = 0) -> int:
    """Write the record of a call that starts now."""
    index = rec.count(kind, group)
    return rec.page.begin(kind, peer, index, tag, record_text(group, detail))


def watch_store(bindings: Any) -> None:
    """Record `get` and `wait` of every store: the classes inherit both from Store."""
    store = bindings.Store
    store.get = _watched_get(store.get)
    store.wait = _watched_wait(store.wait)


# pybind11 recognises the Python override of a virtual method by the name of the calling function and by its first
# argument: these wrappers bear the method's name and take `self`, or a Python subclass of Store would call itself for
# ever.
def _watched_get(original: Any) -> Any:
    @functools.wraps(original)
    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = _begin_store_wait(args, kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            _end_store_wait(number)

    return do_not_trace(get)


def _watched_wait(original: Any) -> Any:
    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = _begin_store_wait(args, kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            _end_store_wait(number)

    return do_not_trace(wait)


def _begin_store_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    rec = recording.current
    if rec is None:
        return None
    try:
        key = args[0] if args else next(iter(kwargs.values()), "")
        detail = key if isinstance(key, str) else ",".join(str(k) for k in key)
        return begin(rec, page.STORE_WAIT, -1, "", detail)
    except Exception as error:  # noqa: BLE001
        rec.note("store waits", f"{type(error).__name__}: {error}")
        return None


def _end_store_wait(number: int | None) -> None:
    rec = recording.current
    if rec is not None and number is not None:
        rec.page.end(number)
        rec.page.give_back(number)


def watch_work(bindings: Any) -> None:
    """Note when an isend or irecv has been waited for; other work passes with one look at a dictionary."""
    original = bindings.Work.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _open or id(self) not in _open:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            _close(id(self))

    bindings.Work.wait = do_not_trace(wait)


def follow(rec: Recording, number: int, work: Any) -> None:
    """The record stays open until the Work has been waited for or is dropped."""
    if work is None:
        rec.page.end(number)
        return
    key = id(work)
    _open[key] = (rec.page, number, weakref.ref(work, lambda _: _close(key)))


def _close(key: int) -> None:
    try:
        entry = _open.pop(key, None)
        if entry is not None:
            entry[0].end(entry[1])
    except Exception:  # noqa: BLE001
        # Called for a Work that is freed while the interpreter ends: Python would print what rises from here.
        return


def forget_in_child() -> None:
    """After a fork: the parent's open calls are not the child's, and the page is the parent's."""
    _open.clear()


def end(rec: Recording, number: int) -> None:
    """The call has returned."""
    attempt("calls", rec.page.end, number)
