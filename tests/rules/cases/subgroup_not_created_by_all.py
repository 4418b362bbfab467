"""The cases of subgroup-not-created-by-all."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.model import PendingCall
from unhang.testing import Fires, Quiet, pending

_WORLD = "[0, 1, 2, 3]"


def _made(subset: bool) -> list[PendingCall]:
    first = [pending("new_group", done=True, index=1, where="main:5", detail="[0, 1]")] if subset else []
    return [*first, pending("new_group", index=len(first) + 1, where="main:8", detail=_WORLD)]


# Each waits in a group of its own and one other rank, which waits in another one.
_IN_TURN = {
    r: [pending("new_group", where="main:9>group:5", detail=f"[{min(r, (r + 1) % 3)}, {max(r, (r + 1) % 3)}]")]
    for r in range(3)
}


CASES = {
    "subgroup-not-created-by-all": (
        Fires(make_case({}, pending={r: _made(r in (0, 1)) for r in range(4)}), (0, 1), 5),
        Fires(make_case({}, pending={r: _made(r == 2) for r in range(4)}), (2,), 5),
        Fires(make_case({}, world=3, pending=_IN_TURN), (), 5),
        Quiet(
            make_case(
                {},
                pending={r: [pending("new_group", done=True, index=1, detail="[0, 1]")] for r in range(4)},
                hang=None,
                exit_code=0,
            ),
            "every rank created the group",
        ),
    ),
}
