"""The cases of output-size."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_FITS, _SHORT = "_all_gather_base[4->16]@main:20 !", "_all_gather_base[4->12]@main:20 !"

CASES = {
    "output-size": (
        Fires(make_case({r: [_SHORT if r == 2 else _FITS] for r in range(4)}), (2,), 20),
        Quiet(make_case({r: [_FITS] for r in range(4)}), "the output has room for four inputs"),
        Quiet(make_case({r: ["all_reduce[4]@main:20 !"] for r in range(4)}), "an op to which this does not apply"),
    ),
}
