"""The cases of code-differs."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "code-differs": (
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
    ),
}
