"""The cases of swallowed-exception."""

from __future__ import annotations

from dataclasses import replace

from tests.rules.notation import Later, make_case
from unhang.model import Frame
from unhang.testing import Fires, Quiet, ended, pending, raised

_AHEAD = {
    1: ["all_reduce[8]@main:10", "barrier@main:14 !"],
    **{r: ["all_reduce[8]@main:10", "all_reduce[8]@main:10 !"] for r in (0, 2, 3)},
}

_WAITED_FOR = {
    1: ["all_reduce[8]@main:2>step:6"],
    **{r: ["all_reduce[8]@main:2>step:6", "all_reduce[8]@main:2>step:6 !"] for r in (0, 2, 3)},
}

_CAUGHT = raised("ValueError: bad image@main:2>step:6", at_s=15, handled=True, handler=Frame("train.py", 8, "step"))

# Rank 1 waits in the barrier of a `finally` that its exception passes; the line that holds it is main:14.
_ROLLED_BACK = raised(
    "Rollback: loss 161.7@main:9>season:30", at_s=-5, handled=True, handler=Frame("train.py", 11, "main")
)
_HELD = raised("ValueError: bad image@main:9>load:30", 0, handled=True, handler=Frame("train.py", 14, "main"))
_OTHER = raised("ImportError: no fast one@main:2", 0, handled=True, handler=Frame("train.py", 10, "main"))

# A ring: rank 2 is in a collective, and its peers wait in the exchange that it left out.
_RING = {
    "world": 3,
    "stacks": {0: "main:20>exchange:5>~comm", 1: "main:20>exchange:6>~comm", 2: "main:30>~comm"},
    "pending": {
        0: [pending("recv", peer=2, where="main:20>exchange:5")],
        1: [pending("send", peer=2, where="main:20>exchange:6")],
    },
}
_BAD = raised("OSError: bad jpeg@main:20>load:2", at_s=5, handled=True, handler=Frame("train.py", 22, "main"))


def _gave_up(times: int) -> Later:
    """Rank 2 handled an exception behind its loop, and ended."""
    call, handler = "all_reduce[8]@main:29>train:15", Frame("train.py", 30, "main")
    errors = [
        raised("KeyError: hybrida@main:29>train:12>label:19", at_s=15 - i, handled=True, handler=handler)
        for i in range(times)
    ]
    calls = {2: [call] * 3, **{r: [*[call] * 3, f"{call} !"] for r in (0, 1)}}
    return make_case(calls, world=3, exits={2: ended("exit", 0, at_s=20)}, more={2: {"handled": tuple(errors)}})


# Line 3 reduces; the handler reduces twice, at line 5; line 7 gathers.
_HALVES = """def main():
    try:
        dist.all_reduce(step(batch))
    except MemoryError:
        [dist.all_reduce(step(half)) for half in halves(batch)]
        later = True
    dist.all_gather(parts, loss)
"""
_TOO_LONG = raised(
    "MemoryError: 2280 positions@main:3>step:40", at_s=-5, handled=True, handler=Frame("train.py", 4, "main")
)


def _halves() -> Later:
    """Rank 1 handled an exception, made its calls in the handler, and is in another round since; the others gather."""
    call, gather = "all_reduce[8]@main:3", "all_gather[1]@main:7 !"
    calls = {1: [call, *["all_reduce[8]@main:5"] * 2, f"{call} !"], **{r: [*[call] * 3, gather] for r in (0, 2)}}
    stacks = {1: "main:3>~comm", 0: "main:7>~comm", 2: "main:7>~comm"}
    return make_case(calls, world=3, source=_HALVES, stacks=stacks, handled={1: _TOO_LONG})


CASES = {
    "swallowed-exception": (
        Fires(
            make_case(_AHEAD, handled={1: raised("ValueError: bad image@main:9>load:30", at_s=-5, handled=True)}),
            (1,),
            30,
        ),
        Fires(
            make_case(_WAITED_FOR, stacks={1: "main:2>get:9"}, handled={1: _CAUGHT}),
            (1,),
            6,
        ),
        Quiet(
            make_case(_WAITED_FOR, stacks={1: "main:2>step:5"}, handled={1: _CAUGHT}),
            "it is still in the function in which it handled the exception: it is late there, for whatever reason",
        ),
        Quiet(
            make_case(_AHEAD, handled={0: raised("ValueError: bad image@main:9>load:30", at_s=-5, handled=True)}),
            "a rank that did not part from its peers may handle what it likes",
        ),
        Quiet(
            make_case(_AHEAD, handled=dict.fromkeys(range(4), _ROLLED_BACK)),
            "all ranks raised it, and handled it in the same place",
        ),
        Fires(_gave_up(1), (2,), 19, "user-exception"),
        Fires(_halves(), (1,), 40, "code-divergence"),
        Fires(make_case(_AHEAD, more={1: {"held": _HELD}}), (1,), 30, "user-exception"),
        Quiet(
            make_case(_AHEAD, more={r: {"held": _OTHER} for r in range(4)}),
            "all ranks run within the handler of the same exception",
        ),
        Quiet(
            make_case(_AHEAD, more={1: {"held": _OTHER}}),
            "it has made calls with its peers from within the handler since",
        ),
        Quiet(
            make_case(_AHEAD, more={0: {"held": _HELD}}),
            "a rank that did not part from its peers may be in a handler",
        ),
        Fires(make_case({2: ["all_reduce[1]@main:30 !"]}, handled={2: _BAD}, **_RING), (2,), 2),
        Quiet(_gave_up(2), "an exception that was handled there before, too, ended nothing"),
        Quiet(
            make_case(
                {2: ["all_reduce[1]@main:30 !"]},
                handled={2: replace(_BAD, handler=Frame("train.py", 40, "make_loader"))},
                **_RING,
            ),
            "in a circle of sends, what was handled in another function than that in which the peers wait",
        ),
    ),
}
