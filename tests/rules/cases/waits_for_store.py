"""The cases of waits-for-store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet, pending

_WAIT = {r: ["broadcast[8]@main:10 !"] for r in (0, 1, 2)}

_STACKS = {**dict.fromkeys((0, 1, 2), "main:10>~comm"), 3: "main:5>get:15>~comm"}

_KEY = {3: [pending("store_wait", where="main:5>get:15", detail="inbox/7")]}

_ORDER = ["all_gather[8]@main:6>train:20", "all_reduce[8]@main:6>train:22", "all_reduce[1]@main:6>train:24"]

_IDLE: dict[str, Any] = {
    "pending": {r: [pending("store_wait", where="main:5>get:15", detail=f"orders{r}/4")] for r in (0, 1)},
    "stacks": {0: "main:5>get:15>~comm", 1: "main:5>get:15>~comm"},
    "world": 3,
    "hang": "suspected",
}


def _after_three_orders(last: str) -> Mapping[int, Sequence[str]]:
    """Two ranks that have done three orders, and one that has made a call after them."""
    return {0: _ORDER * 3, 1: _ORDER * 3, 2: [*_ORDER * 3, f"{last} !"]}


def _within_the_fourth_order() -> Mapping[int, Sequence[str]]:
    """Two ranks in the last call of an order, and one that has not made it."""
    orders = [f"workers/{call}" for call in _ORDER * 4]
    return {r: [*orders[:-1], *([f"{orders[-1]} !"] if r < 2 else [])] for r in range(3)}


_LEFT: dict[str, Any] = {
    "pending": {r: [pending("store_wait", where="main:5>get:15", detail=f"orders{r}/5")] for r in (2, 3)},
    "stacks": {
        0: "main:6>train:24>~comm",
        1: "main:6>train:24>~comm",
        2: "main:5>get:15>~comm",
        3: "main:5>get:15>~comm",
    },
    "groups": {"workers": (0, 1, 2)},
    "hang": "suspected",
}

# The same where rank 0, which waits in the call, has set the keys of the orders.
_ORDERED = {
    **_LEFT,
    "pending": {**_LEFT["pending"], 0: [pending("store_set", done=True, index=4, where="main:50", detail="orders2/4")]},
}

# Rank 0 sets a key for each step; all wait for the one of step 5, rank 0 too.
_AWAITED = pending("store_wait", where="main:7", detail="ready/5")
_READY = {
    "hang": "suspected",
    "stacks": dict.fromkeys(range(4), "main:7>~comm"),
    "pending": {
        0: [pending("store_set", done=True, index=5, where="main:6", detail="ready/4"), _AWAITED],
        **{r: [_AWAITED] for r in (1, 2, 3)},
    },
}

# Rank 0 has set the key of each step but the last one, and is in the next call; the others wait for that key.
_GONE_ON = {0: ["all_reduce[8]@main:4", "all_reduce[8]@main:4 !"], **{r: ["all_reduce[8]@main:4"] for r in (1, 2, 3)}}
_PASSED_OVER: dict[str, Any] = {
    "hang": "suspected",
    "stacks": {0: "main:4>~comm", **dict.fromkeys((1, 2, 3), "main:7>~comm")},
    "pending": {0: _READY["pending"][0][:1], **{r: [_AWAITED] for r in (1, 2, 3)}},
}

# Rank 0 waits for a key of each of three ranks, and these for its next one; rank 2 has left its own out.
_LAST = {1: "up/8/1", 2: "up/7/2", 3: "up/8/3"}
_OF_EACH: dict[str, Any] = {
    "hang": "suspected",
    "stacks": {0: "main:7>~comm", **dict.fromkeys(_LAST, "main:9>~comm")},
    "pending": {
        0: [
            pending("store_set", done=True, index=7, where="main:8", detail="all/7"),
            pending("store_wait", where="main:7", detail="up/8/1,up/8/2,up/8/3"),
        ],
        **{
            r: [
                pending("store_set", done=True, index=7, where="main:6", detail=last),
                pending("store_wait", where="main:9", detail="all/8"),
            ]
            for r, last in _LAST.items()
        },
    },
}

CASES = {
    "waits-for-store": (
        Fires(make_case(_WAIT, hang="suspected", stacks=_STACKS, pending=_KEY), (3,), 15),
        Quiet(
            make_case(
                {1: ["barrier@main:50 !"]}, world=2, hang="suspected", stacks={0: "main:40>~comm", 1: "main:50>~comm"}
            ),
            "a rank in another call than a store's",
        ),
        Quiet(
            make_case({0: _WAIT[0]}, hang="suspected", stacks={0: "main:10>~comm", 3: _STACKS[3]}, pending=_KEY),
            "others are free to set the key",
        ),
        Fires(make_case(_after_three_orders(_ORDER[-1]), **_IDLE), (2,), 24),
        Quiet(
            make_case(_after_three_orders(_ORDER[0]), **_IDLE),
            "the call with which an order begins: the others' orders are late",
        ),
        Quiet(
            make_case(_after_three_orders("all_reduce[5]@evaluate:30"), **_IDLE),
            "a call of an order that there was not before",
        ),
        Quiet(
            make_case(_after_three_orders(_ORDER[-1]), **{**_IDLE, "pending": {0: _IDLE["pending"][0]}}),
            "one of the others does not wait for a message",
        ),
        Fires(make_case(_within_the_fourth_order(), **_LEFT), (2,), 24),
        Fires(make_case(_within_the_fourth_order(), **_ORDERED), (2,), 24),  # who gives the orders waits for it
        Quiet(
            make_case(
                _within_the_fourth_order(),
                **{**_LEFT, "stacks": {**_LEFT["stacks"], 2: "main:6>train:23>get:15>~comm"}},
            ),
            "it waits for a message within the function: it may come to the call",
        ),
        Quiet(
            make_case(_within_the_fourth_order(), **{**_LEFT, "pending": {2: _LEFT["pending"][2]}}),
            "a rank outside of the group may send the message",
        ),
        Quiet(
            make_case(
                {r: [*c[:2], *(c[-1:] if r < 2 else ())] for r, c in _within_the_fourth_order().items()}, **_LEFT
            ),
            "no earlier order tells what comes next",
        ),
        Quiet(
            make_case(
                {r: [*_ORDER, _ORDER[-1], *_ORDER, *([f"{_ORDER[-1]} !"] if r == 2 else [])] for r in range(3)},
                **_IDLE,
            ),
            "an order of the last call alone is nothing new",
        ),
        Fires(make_case({}, **_READY), (0,), 6),
        Fires(make_case(_GONE_ON, **_PASSED_OVER), (0,), 6),
        Fires(make_case({}, **_OF_EACH), (2,), 6),
        Fires(make_case(_GONE_ON, **{**_PASSED_OVER, "pending": {**_PASSED_OVER["pending"], 0: []}}), (1, 2, 3), 7),
        Fires(
            make_case({0: _GONE_ON[0][1:]}, **_PASSED_OVER), (1, 2, 3), 7
        ),  # its first call since the key that it has set
        Quiet(
            make_case({}, **{**_READY, "pending": {**_READY["pending"], 0: _READY["pending"][0][1:]}}),
            "no rank has set keys like the awaited one before",
        ),
        Quiet(
            make_case({}, **{**_READY, "pending": {**_READY["pending"], 1: _READY["pending"][0]}}),
            "several ranks have set keys like it: any of them may be the one that should",
        ),
    ),
}
