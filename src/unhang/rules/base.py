"""What a rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Case, Finding
from unhang.model.example import Fires, Quiet

# What a rule may need, and how its absence is told.
NEEDS: Mapping[str, tuple[Callable[[Case], bool], str]] = {
    "calls": (lambda c: len(c.calls) > 0, "no collective calls were recorded"),
    "ranks": (lambda c: bool(c.ranks), "no rank registered"),
    "stacks": (lambda c: any(r.stacks for r in c.ranks.values()), "no stack could be taken"),
    "states": (lambda c: any(r.state for r in c.ranks.values()), "no process state was read"),
}


class Rule(ABC):
    """One way in which a job goes wrong.

    The docstring has the headings What it detects, Why it hangs, How to confirm, How to fix, Sources. `is_fallback`: it is
    asked only where no other rule has found anything, to say what is known when the cause is not.
    """

    id: ClassVar[str]
    cause: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    is_fallback: ClassVar[bool] = False
    EXAMPLES: ClassVar[tuple[Fires | Quiet, ...]] = ()

    def applies(self, case: Case) -> bool:
        """Whether it judges cases of this sort at all; where not, it has no verdict."""
        return True

    def missing(self, case: Case) -> str:
        """The evidence without which it cannot judge and that is not there; empty: it can."""
        return "; ".join(reason for need in self.needs for present, reason in [NEEDS[need]] if not present(case))

    @abstractmethod
    def check(self, s: Situation) -> Iterable[Finding]:
        """The findings of this rule; none where it has nothing to say."""
