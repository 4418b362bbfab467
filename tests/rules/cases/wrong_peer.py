"""The cases of wrong-peer."""

from __future__ import annotations

from dataclasses import replace

from tests.rules.notation import Later, make_case
from unhang.model import PendingCall
from unhang.testing import Fires, Quiet, pending

_COMM = dict.fromkeys(range(4), "main:9>~comm")


def _made(kind: str, *peers: int) -> list[PendingCall]:
    return [pending(kind, peer=peer, done=True, where="main:5") for peer in (*peers, *peers)]


def _exchanges(*pairs: tuple[int, int]) -> Later:
    """Rank by rank: (to whom it has begun to send, from whom to receive)."""
    begun = [[pending("isend", peer=to, where="main:5"), pending("irecv", peer=of, where="main:5")] for to, of in pairs]
    ranks = range(len(pairs))
    return make_case(
        {}, world=len(pairs), pending=dict(zip(ranks, begun, strict=True)), stacks=dict.fromkeys(ranks, "main:6>~comm")
    )


def _tagged(*tags: int, peer: int, kind: str, done: int) -> list[PendingCall]:
    """Transfers with tags, of which the first `done` have ended."""
    made = [pending(kind, peer=peer, done=i < done, where="main:5") for i in range(len(tags))]
    return [replace(call, tag=tag) for call, tag in zip(made, tags, strict=True)]


def _tags(sent: tuple[int, ...], received: tuple[int, ...], done: int) -> Later:
    """Rank 0 sends to rank 1; the tags of the last transfer differ."""
    calls = {
        0: _tagged(*sent, peer=1, kind="send", done=done),
        1: _tagged(*received, peer=0, kind="recv", done=done),
    }
    return make_case({}, world=2, pending=calls, stacks=dict.fromkeys(range(2), "main:5>~comm"))


CASES = {
    "wrong-peer": (
        Fires(
            make_case(
                {0: ["barrier@main:12 !"], 1: ["barrier@main:12 !"]},
                pending={2: [pending("send", peer=0, where="main:9")], 3: [pending("recv", peer=2, where="main:7")]},
                stacks=_COMM,
            ),
            (2,),
            9,
        ),
        Fires(
            make_case(
                {},
                world=3,
                pending={
                    0: [*_made("send", 1, 2, 1, 2), pending("send", peer=2, where="main:5")],
                    1: [*_made("recv", 0, 0), pending("recv", peer=0, where="main:7")],
                    2: [*_made("recv", 0, 0), pending("recv", peer=1, where="main:7")],
                },
                stacks=_COMM,
            ),
            (2,),
            7,
        ),
        Fires(_exchanges((1, 1), (2, 2), (0, 0)), (), 5),
        Fires(_tags((4, 8, 12, 16, 20, 28), (4, 8, 12, 16, 20, 24), 5), (0,), 5),
        Fires(_tags((7, 3), (7, 9), 1), (), 5),
        Quiet(_tags((1, 2, 1), (1, 2, 2), 2), "tags that both have used before came in two orders"),
        Quiet(
            _exchanges((1, 2), (2, 0), (0, 1)),
            "a ring in which each sends to the next and receives from the one before",
        ),
        Quiet(
            make_case(
                {},
                world=2,
                pending={r: [pending("recv", peer=1 - r, where="main:9")] for r in range(2)},
                stacks=dict.fromkeys(range(2), "main:9>~comm"),
            ),
            "two receivers that name each other have the right peer and the wrong order",
        ),
        Quiet(
            make_case(
                {},
                world=2,
                pending={1: [pending("recv", peer=0, where="main:9")]},
                stacks={0: "main:3", 1: "main:9>~comm"},
            ),
            "a sender that is late",
        ),
    ),
}
