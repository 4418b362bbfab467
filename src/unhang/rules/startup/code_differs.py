"""Rule: the ranks have different training code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Case, Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.model.readings import Value
from unhang.rules.environment.odd_ranks import Difference, headline, nothing_to_compare
from unhang.rules.reading_rule import ReadingRule, cite

_SHORT = 10


class CodeDiffers(ReadingRule):
    """The training code of a rank is another revision, or has other changes, than that of the others.

    What it detects:
        The revision of git in the folder of the code (`--code`, else the current one), and a hash of what was changed since; without
        git the content of the Python files of the folder that was named.

    Why it hangs:
        Ranks with different programs make different collective calls: each waits for the call that the other does not make.

    How to confirm:
        `git -C FOLDER rev-parse HEAD; git -C FOLDER status --short` on every node.

    How to fix:
        The same revision on all nodes, without changes by hand; a shared folder or an image.

    Sources:
        Collectives are matched by their order, on every rank of a group.
    """

    id = "code-differs"
    cause = "version-mismatch"
    reads = ("versions.code",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [
                    read("versions.code /app", rank=r, how="git", revision=("b" if r == 2 else "a") * 40, changes="")
                    for r in range(4)
                ]
            ),
            (2,),
        ),
        Fires(
            readings_case(
                [
                    read("versions.code /app", rank=r, how="git", revision="a" * 40, changes="51c9" if r == 1 else "")
                    for r in range(3)
                ],
                world=3,
            ),
            (1,),
        ),
        Quiet(
            readings_case(
                [read(f"versions.code /app{r}", rank=r, how="git", revision="a" * 40, changes="51c9") for r in range(4)]
            ),
            "the same changes everywhere, in folders of other names",
        ),
        Quiet(
            readings_case(
                [
                    read("versions.code /app", rank=r, how="git", revision="a" * 40, changes=None if r == 1 else "51c9")
                    for r in range(4)
                ]
            ),
            "no git on one node: its changes are not known",
        ),
    )

    def missing(self, case: Case) -> str:
        """One rank has nothing to compare with."""
        return super().missing(case) or nothing_to_compare(case, "versions.code")

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for the revision, else one for the changes."""
        code = s.readings.of("versions.code")
        revisions = Difference("revision", _by(code, lambda r: r.text("revision")[:_SHORT]))
        known = [r for r in code if r["changes"] is not None]
        changed = Difference("changes", _by(known, lambda r: r.text("changes") or "no changes"))
        for found, confidence in ((revisions, 0.93), (changed, 0.85)):
            if len(found.by_value) < 2:
                continue
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{headline([found])} of the training code",
                confidence=confidence,
                culprit_ranks=found.odd,
                victim_ranks=s.others(found.odd) if found.odd else (),
                because="Ranks with different programs make different collective calls sooner or later.",
                evidence=cite(found.cited),
                fixes=(
                    Fix(
                        "The same revision on all nodes",
                        command="git -C FOLDER stash --include-untracked && git -C FOLDER checkout REVISION   # there",
                        verify="unhang check --only versions --code FOLDER on all ranks: no difference",
                        undo="git -C FOLDER stash pop",
                    ),
                ),
            )
            return


def _by(readings: Iterable[Reading], value_of: Callable[[Reading], str]) -> dict[Value, tuple[Reading, ...]]:
    """Readings by a value, the most frequent first."""
    found: dict[Value, tuple[Reading, ...]] = {}
    for reading in readings:
        value = value_of(reading)
        found[value] = (*found.get(value, ()), reading)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
