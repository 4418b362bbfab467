"""Fixes as diffs: what a finding says is wrong, mended in the program's own text. Sure ones only; else the reason why there is none."""

from unhang.fix.making import Mended, mend, with_diff
from unhang.fix.program import NoDiff

__all__ = ["Mended", "NoDiff", "mend", "with_diff"]
