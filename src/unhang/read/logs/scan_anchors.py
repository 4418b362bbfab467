"""What is looked for in a log too long to be read line by line, and how much of each is kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from unhang.read.logs.patterns import by_anchor
from unhang.read.traceback_text import CHAINED, START


@dataclass(frozen=True, slots=True)
class Anchor:
    """A literal text in a line that may matter.

    Args:
        word: the text.
        first: so many lines that hold it are kept from the beginning of the log; of later ones only the first in each block.
        last: so many of those later ones are kept, from the end of the log.
        before: lines before it that are kept with it, as far as its block holds them.
        after: lines that follow it and are kept with it.
        until: the lines that follow end with the one that holds this.
    """

    word: bytes
    first: int = 2000
    last: int = 500
    before: int = 0
    after: int = 0
    until: bytes = b""


_RULE = b"=" * 20
# Of lines that tell of a failure every rank's is wanted.
_SPEAKING, _OTHER = (2000, 500), (600, 200)
_TRACEBACK_LINES, _STACK_LINES, _SUMMARY_LINES = 120, 60, 8000
_LAUNCHERS = (
    b"torch.distributed.elastic",
    b"torch/distributed/elastic",
    b"torch.distributed.run",
    b"torch/distributed/run",
    b"torch.distributed.launch",
    b"torch/distributed/launch",
    b"torchrun",
    b"ChildFailedError",
    b"[launch.py:",
)

# What the readers of tracebacks, stacks and launchers' summaries need; the events' own anchors come from their patterns.
_READERS = (
    Anchor(START.removesuffix(":").encode(), 300, 100, 1, _TRACEBACK_LINES),  # in a box there is no colon
    Anchor(b'.py", line ', 1000, 400, 0, 4),  # a frame of a traceback whose beginning is lost
    *(Anchor(text, 20, 5) for text in _LAUNCHERS),
    *(Anchor(text.encode(), 300, 100, 0, 3) for text in CHAINED),
    Anchor(b"Exception ignored in", 300, 100, 0, 2),
    Anchor(b"(most recent call first):", 300, 100, 2, _STACK_LINES),
    Anchor(b"Fatal Python error", 300, 100, 2, _STACK_LINES),
    *(Anchor(text, 300, 100, 3, _STACK_LINES) for text in (b"(active): ", b"(active+gil", b"(idle): ", b"#0  0x")),
    Anchor(b"terminate called after throwing", 300, 100, 0, 20),
    Anchor(b"Caught signal ", 300, 100, 0, 30),
    Anchor(b"*** Process received signal", 300, 100, 0, 30),
    Anchor(b"terminated with the following error:", 300, 100, 0, _TRACEBACK_LINES),
    Anchor(b"Failures:", 30, 20, 4, _SUMMARY_LINES, _RULE),
    Anchor(b"Root Cause (first observed failure)", 30, 20, 0, 200, _RULE),
    Anchor(b"failed (exitcode: "),
    Anchor(b"terminated with signal "),
    Anchor(b"terminated with exit code "),
    Anchor(b"exits with return code"),
    Anchor(b"Killing subprocess"),
    Anchor(b"srun: error:"),
    Anchor(b"slurmstepd: error:"),
    Anchor(b"exited on signal"),
    Anchor(b"Last error:", 300, 100, 0, 2),
    Anchor(b"Error: ", 500, 200),
)


@cache
def anchors() -> tuple[Anchor, ...]:
    """All of them, each text once."""
    found = {anchor.word: anchor for anchor in _READERS}
    for text, patterns in by_anchor().items():
        says = any(pattern.says for pattern in patterns)
        found.setdefault(text.encode(), Anchor(text.encode(), *(_SPEAKING if says else _OTHER)))
    return tuple(found[word] for word in sorted(found))
