"""For those who write rules: cases in a short notation, and the judgement of them. Public.

Example::

    case = make_case({0: ["barrier@main:3 !"], 1: ["all_reduce[8]@main:4 !"]}, world=2)
    assert judge(case).findings[0].culprit_ranks == (0,)
"""

from unhang.model.example import Fires, Quiet, ended, make_case, path, pending, raised
from unhang.rules.registry import judge

__all__ = ["Fires", "Quiet", "ended", "judge", "make_case", "path", "pending", "raised"]
