"""Records the calls that gloo's flight recorder does not show: point-to-point, and making and destroying groups."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

from . import announce, flight, groups, page, recording
from .recording import Recording, attempt
from .waiting import begin, end, follow

_PEER_WORD = {page.SEND: "dst", page.ISEND: "dst", page.RECV: "src", page.IRECV: "src"}
_MOST_DETAIL = 72

# Threads inside a recorded call: `send` calls `isend`, `new_group` calls `_new_group_with_tag`. One record each.
_inside: set[int] = set()


def watch(c10d: Any) -> None:
    """Wrap the functions where they are defined and wherever torch.distributed has copied them already."""
    wraps: dict[str, Callable[[Any, Any], Any]] = {
        "send": functools.partial(_blocking_p2p, kind=page.SEND),
        "recv": functools.partial(_blocking_p2p, kind=page.RECV),
        "isend": functools.partial(_posted_p2p, kind=page.ISEND),
        "irecv": functools.partial(_posted_p2p, kind=page.IRECV),
        "init_process_group": _init_process_group,
        "new_group": _new_group,
        "_new_group_with_tag": _new_group,
        "split_group": _new_group,
        "destroy_process_group": _destroy_process_group,
    }
    for name, wrap in wraps.items():
        original = getattr(c10d, name, None)
        if original is not None:
            _replace(c10d, name, original, wrap(c10d, original))


def _replace(c10d: Any, name: str, original: Any, wrapper: Any) -> None:
    """P2POp compares with c10d.isend by identity, so every module must see the same object."""
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
        return begin(rec, kind, peer, groups.name_of(c10d, group), "", tag)
    except Exception as error:  # noqa: BLE001
        rec.note("point-to-point calls", f"{type(error).__name__}: {error}")
        return None


def _blocking_p2p(c10d: Any, original: Any, kind: int) -> Any:
    @functools.wraps(original)
    def p2p(*args: Any, **kwargs: Any) -> Any:
        rec, thread = recording.current, get_ident()
        if rec is None or thread in _inside:
            return original(*args, **kwargs)
        number = _begin_p2p(rec, c10d, kind, args, kwargs)
        _inside.add(thread)
        try:
            return original(*args, **kwargs)
        finally:
            _inside.discard(thread)
            if number is not None:
                rec.page.end(number)

    return p2p


def _posted_p2p(c10d: Any, original: Any, kind: int) -> Any:
    @functools.wraps(original)
    def p2p(*args: Any, **kwargs: Any) -> Any:
        rec = recording.current
        if rec is None or get_ident() in _inside:
            return original(*args, **kwargs)
        number = _begin_p2p(rec, c10d, kind, args, kwargs)
        if number is None:
            return original(*args, **kwargs)
        try:
            work = original(*args, **kwargs)
        except BaseException:
            rec.page.end(number)
            raise
        attempt("point-to-point calls", follow, rec, number, work)
        return work

    return p2p


def _init_process_group(c10d: Any, original: Any) -> Any:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = _argument(args, kwargs, 4, "rank")
        rec = attempt("announcing the rank", announce.announce_at_init, rank)
        number = attempt("calls", begin, rec, page.INIT, -1, "", "") if rec is not None else None
        try:
            result = original(*args, **kwargs)
        finally:
            if rec is not None and number is not None:
                end(rec, number)
        attempt("identity after init", _after_init, c10d, _argument(args, kwargs, 2, "timeout"))
        return result

    return init_process_group


def _after_init(c10d: Any, timeout: Any) -> None:
    rec = attempt("announcing the rank", announce.announce_at_init, c10d.get_rank())
    if rec is None:
        return
    rec.identity["world_size"] = c10d.get_world_size()
    rec.identity["backend"] = str(c10d.get_backend())
    announce.complete_identity(rec)
    groups.write_new(rec, c10d, timeout)
    rec.has_flight = False
    rec.page.words[page.INITIALIZED] = 1


def _new_group(c10d: Any, original: Any) -> Any:
    is_split = original.__name__ == "split_group"

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        rec, thread = recording.current, get_ident()
        if rec is None or thread in _inside:
            return original(*args, **kwargs)
        ranks = _argument(args, kwargs, 1, "split_ranks") if is_split else _argument(args, kwargs, 0, "ranks")
        timeout = _argument(args, kwargs, 2 if is_split else 1, "timeout")
        number = attempt("calls", _begin_new_group, rec, c10d, ranks)
        _inside.add(thread)
        try:
            result = original(*args, **kwargs)
        finally:
            _inside.discard(thread)
            if number is not None:
                end(rec, number)
        attempt("groups.jsonl", groups.write_new, rec, c10d, timeout)
        return result

    return new_group


def _begin_new_group(rec: Recording, c10d: Any, ranks: Any) -> int:
    ranks = range(c10d.get_world_size()) if ranks is None else ranks
    text = ",".join(str(rank) for rank in ranks)
    if len(text) > _MOST_DETAIL:
        # Half a number would be another rank.
        text = text[: _MOST_DETAIL - 4].rpartition(",")[0] + ",..."
    return begin(rec, page.NEW_GROUP, -1, "", text)


def _destroy_process_group(c10d: Any, original: Any) -> Any:
    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        rec = recording.current
        if rec is None:
            return original(*args, **kwargs)
        group = _argument(args, kwargs, 0, "group")
        is_default = group is None or group is c10d.GroupMember.WORLD
        if is_default:
            attempt("flight_exit.pickle", flight.dump_at_end, rec)
        name = attempt("calls", groups.name_of, c10d, group) or ""
        number = attempt("calls", begin, rec, page.DESTROY, -1, name, "")
        try:
            result = original(*args, **kwargs)
        finally:
            if number is not None:
                end(rec, number)
        if is_default:
            rec.groups_written.clear()
            rec.page.words[page.INITIALIZED] = 2
        return result

    return destroy_process_group
