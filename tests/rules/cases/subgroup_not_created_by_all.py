"""The cases of subgroup-not-created-by-all."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.model import PendingCall
from unhang.testing import Fires, Quiet, pending

_WORLD = "[0, 1, 2, 3]"


def _made(subset: bool) -> list[PendingCall]:
    first = [pending("new_group", done=True, index=1, where="main:5", detail="[0, 1]")] if subset else []
    return [*first, pending("new_group", index=len(first) + 1, where="main:8", detail=_WORLD)]


CASES = {
    "subgroup-not-created-by-all": (
        Fires(make_case({}, pending={r: _made(r in (0, 1)) for r in range(4)}), (0, 1), 5),
        Fires(make_case({}, pending={r: _made(r == 2) for r in range(4)}), (2,), 5),
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
