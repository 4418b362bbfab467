"""Records what gloo's flight recorder does not show: point-to-point calls, the making of groups and who is in them, waits for a store."""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from . import announce, facts, flight, recording
from .flight import reductions
from .frames import record_text
from .recording import Recording, append_json, attempt, do_not_trace, failed_in_torch

_PEER_WORD = {recording.SEND: "dst", recording.ISEND: "dst", recording.RECV: "src", recording.IRECV: "src"}
_MOST_DETAIL = 72
# Threads inside a recorded call: `send` calls `isend`, `new_group` calls `_new_group_with_tag`. One record each.
_inside: set[int] = set()
# Keys of a store by their sort: the number of the record of the last one.
_keys: dict[str, int] = {}
_MOST_SORTS, _NUMBER = 32, re.compile(r"\d+")
# Open isend and irecv calls: id of the Work -> (page, number of the record, what notices that the Work is dropped).
_open: dict[int, tuple[recording.Page, int, Any]] = {}


def watch(c10d: Any) -> None:
    """Wrap the functions wherever torch.distributed has them, and the method that libraries call on a group of their own."""
    wraps: dict[str, Callable[[Any, Any], Any]] = {
        "send": functools.partial(_blocking_p2p, kind=recording.SEND),
        "recv": functools.partial(_blocking_p2p, kind=recording.RECV),
        "isend": functools.partial(_posted_p2p, kind=recording.ISEND),
        "irecv": functools.partial(_posted_p2p, kind=recording.IRECV),
        "init_process_group": _init_process_group,
        "new_group": _new_group,
        "_new_group_with_tag": _new_group,
        "split_group": _new_group,
        "destroy_process_group": _destroy_process_group,
    }
    for name, wrap in wraps.items():
        if (original := getattr(c10d, name, None)) is not None:
            replace(c10d, name, original, wrap(c10d, original))
    if method := getattr(getattr(c10d, "ProcessGroup", None), "monitored_barrier", None):
        attempt("calls", setattr, c10d.ProcessGroup, "monitored_barrier", _monitored_barrier(c10d, method))


def replace(c10d: Any, name: str, original: Any, wrapper: Any) -> None:
    """Puts a wrapper in the place of a function: P2POp compares with c10d.isend by identity, so every module must see the same."""
    for module in (c10d, sys.modules.get("torch.distributed")):
        if module is not None and getattr(module, name, original) is original:
            setattr(module, name, wrapper)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, word: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(word)


def _begin_p2p(rec: Recording, c10d: Any, kind: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    try:
        word = _PEER_WORD[kind]
        group = _argument(args, kwargs, 2, "group")
        peer = _argument(args, kwargs, 1, word)
        if peer is None:
            in_group = _argument(args, kwargs, 4, "group_" + word)
            peer = -1 if in_group is None else c10d.get_global_rank(group or c10d.GroupMember.WORLD, in_group)
        tag = _argument(args, kwargs, 3, "tag") or 0
        return begin(rec, kind, peer, name_of(c10d, group), "", tag)
    except Exception as error:  # noqa: BLE001
        rec.note("point-to-point calls", f"{type(error).__name__}: {error}")
        return None


def _blocking_p2p(c10d: Any, original: Any, kind: int) -> Any:
    @functools.wraps(original)
    def p2p(*args: Any, **kwargs: Any) -> Any:
        rec, thread = recording.current, get_ident()
        is_outer, number = rec is not None and thread not in _inside, None
        if rec is not None and is_outer:
            number = _begin_p2p(rec, c10d, kind, args, kwargs)
            _inside.add(thread)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            if is_outer:
                _inside.discard(thread)
            if rec is not None and number is not None:
                rec.page.end(number)

    return p2p


def _posted_p2p(c10d: Any, original: Any, kind: int) -> Any:
    @functools.wraps(original)
    def p2p(*args: Any, **kwargs: Any) -> Any:
        rec = recording.current
        is_ours = rec is not None and get_ident() not in _inside
        number = _begin_p2p(rec, c10d, kind, args, kwargs) if rec is not None and is_ours else None
        try:
            work = original(*args, **kwargs)
        except BaseException as error:
            if rec is not None and number is not None:
                rec.page.end(number)
            failed_in_torch(error)
            raise
        if rec is not None and number is not None:
            attempt("point-to-point calls", follow, rec, number, work)
        return work

    return p2p


def _init_process_group(c10d: Any, original: Any) -> Any:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank, world_size = _argument(args, kwargs, 4, "rank"), _argument(args, kwargs, 3, "world_size")
        rec = attempt("announcing the rank", announce.announce_at_init, rank, world_size)
        place = announce.meets_at(args, kwargs)
        number = attempt("calls", begin, rec, recording.INIT, -1, "", place) if rec is not None else None
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            if rec is not None and number is not None:
                end(rec, number)
        attempt("identity after init", note_initialized, c10d, _argument(args, kwargs, 2, "timeout"))
        return result

    return init_process_group


def note_initialized(c10d: Any, timeout: Any) -> None:
    """The default group stands: write who this rank is in it, and the groups."""
    rec = attempt("announcing the rank", announce.announce_at_init, c10d.get_rank())
    if rec is None:
        return
    rec.identity["world_size"] = c10d.get_world_size()
    rec.identity["backend"] = str(c10d.get_backend())
    announce.complete_identity(rec)
    write_new_groups(rec, c10d, timeout)
    rec.has_flight = False
    rec.page.words[recording.INITIALIZED] = 1


def _new_group(c10d: Any, original: Any) -> Any:
    is_split = original.__name__ == "split_group"

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        rec, thread = recording.current, get_ident()
        is_outer, number = rec is not None and thread not in _inside, None
        timeout = _argument(args, kwargs, 2 if is_split else 1, "timeout")
        if rec is not None and is_outer:
            ranks = _argument(args, kwargs, 1, "split_ranks") if is_split else _argument(args, kwargs, 0, "ranks")
            is_local = not is_split and _argument(args, kwargs, 4, "use_local_synchronization")
            number = attempt("calls", _begin_new_group, rec, c10d, ranks, bool(is_local))
            _inside.add(thread)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            if is_outer:
                _inside.discard(thread)
            if rec is not None and number is not None:
                end(rec, number)
        if rec is not None and is_outer:
            attempt("groups.jsonl", write_new_groups, rec, c10d, timeout)
            attempt("groups", facts.note_group, rec, c10d, kwargs)
        return result

    return new_group


def _begin_new_group(rec: Recording, c10d: Any, ranks: Any, is_local: bool) -> int:
    ranks = range(c10d.get_world_size()) if ranks is None else ranks
    text = ",".join(str(rank) for rank in ranks)
    if len(text) > _MOST_DETAIL:
        # Half a number would be another rank.
        text = text[: _MOST_DETAIL - 4].rpartition(",")[0] + ",..."
    return begin(rec, recording.NEW_GROUP, -1, "", text, int(is_local))


def _destroy_process_group(c10d: Any, original: Any) -> Any:
    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        rec, number = recording.current, None
        group = _argument(args, kwargs, 0, "group")
        is_default = group is None or group is c10d.GroupMember.WORLD
        if rec is not None:
            if is_default:
                attempt("flight_exit.pickle", flight.dump_at_end, rec)
            name = attempt("calls", name_of, c10d, group) or ""
            number = attempt("calls", begin, rec, recording.DESTROY, -1, name, "")
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            if rec is not None and number is not None:
                end(rec, number)
        if rec is not None and is_default:
            rec.groups_written.clear()
            rec.page.words[recording.INITIALIZED] = 2
        return result

    return destroy_process_group


def _monitored_barrier(c10d: Any, original: Any) -> Any:
    @functools.wraps(original)
    def monitored_barrier(*args: Any, **kwargs: Any) -> Any:
        rec = recording.current
        name = (attempt("calls", name_of, c10d, args[0]) if args else None) or ""
        limit = attempt("calls", lambda: str(float(args[1].total_seconds()))) if len(args) > 1 else ""
        kind = recording.MONITORED_BARRIER
        number = attempt("calls", begin, rec, kind, -1, name, limit or "") if rec is not None else None
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            if rec is not None and number is not None:
                end(rec, number)

    return monitored_barrier


def name_of(c10d: Any, group: Any) -> str:
    """The group's name as the flight recorder has it; '0' is the default group."""
    return str(c10d._world.pg_names.get(c10d.GroupMember.WORLD if group is None else group, ""))


def write_new_groups(rec: Recording, c10d: Any, timeout: Any) -> None:
    """Append a line for every group of this rank that has none yet."""
    for group, name in list(c10d._world.pg_names.items()):
        if name not in rec.groups_written:
            rec.groups_written.add(name)
            append_json(rec.path("groups.jsonl"), facts.describe_group(c10d, group, name, timeout))


def begin(rec: Recording, kind: int, peer: int, group: str, detail: str, tag: int = 0) -> int:
    """Write the record of a call that starts now. Transfers are counted per peer, too: the ring may lose the earlier ones."""
    nth = rec.count(kind % 2, f"{peer} {tag} {group}") if kind in _PEER_WORD else 0  # sends are odd
    return rec.page.begin(kind, peer, rec.count(kind, group), tag, record_text(group, detail), nth)


def watch_store(bindings: Any) -> None:
    """Record `get`, `wait` and `set` of every store: the classes inherit them from Store."""
    store = bindings.Store
    store.set = _watched_set(store.set)
    store.get = _watched_wait(store.get, "get")
    store.wait = _watched_wait(store.wait, "wait")


# pybind11 recognises the Python override of a virtual method by the name of the calling function and by its first
# argument: these wrappers bear the method's name and take `self`, or a Python subclass of Store would call itself for
# ever.
def _watched_wait(original: Any, name: str) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = _begin_store_wait(args, kwargs)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            _end_short_wait(number)

    wait.__code__ = wait.__code__.replace(co_name=name)
    return do_not_trace(functools.wraps(original)(wait))


def _watched_set(original: Any) -> Any:
    @functools.wraps(original)
    def set(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        if recording.current is not None:
            attempt("keys of a store", _note_set, recording.current, args[0] if args else kwargs.get("key"))
        return result

    return do_not_trace(set)


def _note_set(rec: Recording, key: Any) -> None:
    """Keep the last key of each sort, and how many there were: `ready/7` and `ready/8` are of one sort."""
    sort = _NUMBER.sub("#", str(key)[:_MOST_DETAIL])
    if sort in _keys or len(_keys) < _MOST_SORTS:
        text = record_text("", str(key))
        _keys[sort] = rec.page.note(_keys.get(sort), recording.STORE_SET, rec.count(recording.STORE_SET, sort), text)


def _begin_store_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    rec = recording.current
    if rec is None:
        return None
    try:
        key = args[0] if args else next(iter(kwargs.values()), "")
        detail = key if isinstance(key, str) else ",".join(str(k) for k in key)
        return begin(rec, recording.STORE_WAIT, -1, "", detail)
    except Exception as error:  # noqa: BLE001
        rec.note("store waits", f"{type(error).__name__}: {error}")
        return None


def _end_short_wait(number: int | None) -> None:
    rec = recording.current
    if rec is not None and number is not None:
        rec.page.end(number)
        rec.page.give_back(number)


def watch_work(bindings: Any) -> None:
    """Note for which isend or irecv a thread waits, since when, and that it has; where none is open, other work passes with one look at a dictionary."""
    original = bindings.Work.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        reductions.waits(id(self))
        number = _begin_wait(id(self)) if _open else None
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            failed_in_torch(error)
            raise
        finally:
            if number is not None:
                _end_short_wait(number)
            elif _open and id(self) in _open:
                _close(id(self))

    bindings.Work.wait = do_not_trace(wait)
    future = bindings.Work.get_future

    @functools.wraps(future)
    def get_future(self: Any) -> Any:
        reductions.waits(id(self))  # when somebody waits for the future is not seen: from now on
        return future(self)

    bindings.Work.get_future = do_not_trace(get_future)


def _begin_wait(key: int) -> int | None:
    """Marks the transfer that is waited for; of other work the record of a wait, which tells that it is for none of those that are open."""
    rec = recording.current
    if rec is None or get_ident() in _inside:
        return None
    try:
        entry = _open.get(key)
        if entry is None:
            return begin(rec, recording.WORK_WAIT, -1, "", "")
        entry[0].wait_for(entry[1])
    except Exception as error:  # noqa: BLE001
        rec.note("waits for isend and irecv", f"{type(error).__name__}: {error}")
    return None


def follow(rec: Recording, number: int, work: Any) -> None:
    """The record stays open until the Work has been waited for or is dropped."""
    if work is None:
        rec.page.end(number)
        return
    key = id(work)
    reductions.forget(key)
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
    _keys.clear()


def end(rec: Recording, number: int) -> None:
    """The call has returned."""
    attempt("calls", rec.page.end, number)
