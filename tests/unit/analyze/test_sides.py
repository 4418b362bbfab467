"""Variables that two sides of a divergence disagree on."""

from __future__ import annotations

import pytest

from unhang.analyze.program.values import differing
from unhang.model import Case, Frame, RankEvidence, RankIdentity

HERE = Frame("train.py", 9, "main")
ENDED, GOES_ON = "exhausted generator", "generator"


def case_of(values: dict[int, dict[str, str]]) -> Case:
    """Ranks with variables of `main`; without any, the rank left none."""
    ranks = {
        rank: RankEvidence(RankIdentity(rank, len(values)), variables=tuple((HERE, k, v) for k, v in own.items()))
        for rank, own in values.items()
    }
    return Case(ranks=ranks)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({0: {"it": GOES_ON}, 1: {"it": ENDED}, 2: {"it": GOES_ON}}, (("it", ENDED, GOES_ON),)),
        ({0: {"it": GOES_ON}, 1: {"it": ENDED}, 2: {}}, (("it", ENDED, GOES_ON),)),  # rank 2 left no values
        ({0: {}, 1: {"it": ENDED}, 2: {}}, ()),
        ({0: {"it": GOES_ON}, 1: {}, 2: {"it": GOES_ON}}, ()),
        ({0: {"it": GOES_ON}, 1: {"it": ENDED}, 2: {"it": ENDED}}, ()),  # the others disagree
        ({0: {"it": GOES_ON}, 1: {"it": ENDED}, 2: {"step": "3"}}, ()),  # seen, and without it
        ({0: {"rank": "0"}, 1: {"rank": "1"}, 2: {"rank": "0"}}, ()),
    ],
)
def test_differing(values: dict[int, dict[str, str]], expected: tuple[tuple[str, str, str], ...]) -> None:
    assert differing(case_of(values), (1,), (0, 2), HERE) == expected
