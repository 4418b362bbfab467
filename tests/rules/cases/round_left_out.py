"""The cases of round-left-out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unhang.model import Case
from unhang.testing import Fires, Quiet, make_case, pending

_TRIALS = """def main(study, world):
    for index, setting in enumerate(study):
        if hopeless(setting):
            continue
        run(setting)

def run(setting):
    init_process_group("gloo")
"""
_RANDOM = _TRIALS.replace(
    "        run(setting)", "        if seen(setting):\n            continue\n        run(setting)"
)


def _in_rounds(*rounds: int, source: str = _TRIALS, line: int = 5) -> Callable[[], Case]:
    """Three ranks at the call of a round, of which the first two have made one group more; `rounds`: the loop's variable on each."""

    def made() -> Case:
        done = [pending("init_process_group", done=True, where="main:5>run:8")]
        inits = {r: [*done, *([replace(done[0], index=2, ended_ns=None)] if r < 2 else [])] for r in range(3)}
        stacks = dict.fromkeys(range(3), f"main:{line}>run:{line + 3}")
        case = make_case({}, world=3, hang="suspected", pending=inits, stacks=stacks, source=source)
        frame = case.ranks[0].main_frames[-1]
        told = {
            r: replace(e, variables=((frame, "index", str(n)),))
            for (r, e), n in zip(case.ranks.items(), rounds, strict=True)
        }
        return replace(case, ranks=told)

    return made


CASES = {
    "round-left-out": (
        Fires(_in_rounds(4, 4, 5), (2,), 4),
        Quiet(_in_rounds(4, 4, 4), "all are in one round: it is late"),
        Quiet(_in_rounds(4, 4, 5, source=_RANDOM, line=7), "more than one test leads past it"),
    )
}
