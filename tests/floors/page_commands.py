"""What the pages show of `unhang`, and how a test runs it: what stands for each placeholder, and what is left out and why.

python -m tests.floors.page_commands     how many commands run, are parsed, are run elsewhere
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import cache

from tests.floors.test_site import PAGES, commands

JOB = ("torchrun", "--nproc-per-node", "2", "train.py")
FAULT = "skip_collective:rank=1,call=5"
# What a placeholder stands for, wherever it is.
STANDS_FOR: dict[str, tuple[str, ...]] = {
    "REPORT": ("broken",),
    "BUNDLE": ("broken",),
    "REPORT_OF_NODE_0": ("node0",),
    "REPORT_OF_NODE_1": ("node1",),
    "DIR": ("DUMPS",),
    "PATH": ("train.py",),
    "PATH...": ("train.py",),
    "RULE": ("never-issued",),
    "LINE": ("collective operation timeout",),
    "FILE": ("launch.sh",),
    "LOG": ("slurm-4711.out",),
    "LOG...": ("slurm-4711.out", "slurm-4711.err"),
    "COMMAND...": JOB,
    "STORY": ("nanochat",),
    "{tmp}": ("skills",),
    "/shared/job-4711": ("node0",),
    "/from/node1/unhang-reports/20260101-120002": ("broken",),
}
# The same for one command alone.
OF_ONE: dict[tuple[str, str], tuple[str, ...]] = {
    ("diagnose", "FILE"): ("slurm-4711.out",),
    ("diagnose", "PATH..."): ("DUMPS",),
    ("skill", "DIR"): ("skill",),
    ("env", "NAME"): ("NCCL_P2P_DISABLE",),
    ("inject", "NAME"): (FAULT,),
    ("verify", "60"): ("0.1",),  # minutes, and the faults within them
    ("verify", "sigkill:rank=1,step=20@10, straggler:rank=2@25"): (
        "sigkill:rank=1,step=20@0.02, straggler:rank=2@0.05",
    ),
}
# Of the site where a command runs.
VARIABLES = {
    "SLURM_NNODES": "2",
    "SLURM_JOB_ID": "4711",
    "MASTER_ADDR": "node0",
    "UNHANG_REPORT_DIR": "broken",
    "HOME": ".",
}
# A sentence names a command or an option of it: there is no line to run, and its help must have what is named.
NAMED = {"run", "verify", "explain", "inject", "reproduce", "skill", "completion"}
NAMED_OPTIONS = {"unhang run --metrics --webhook"}
# What is read by the program's own parser alone, and why it is not run.
PARSED = {"unhang demo --faults": "twenty real jobs, five minutes"}


@dataclass(frozen=True)
class Shown:
    """A command of a page, and what is made of it.

    `how`: "run"; "live", run on a real job that hangs; "ranks" and "demo", which start real jobs of their own; "named", its help is run; or "parsed".
    """

    text: str
    words: tuple[str, ...]
    how: str


def _bound(command: str) -> tuple[str, ...]:
    """The words of a command, with what stands for its placeholders."""
    plain = re.sub(r"\[([A-Z:=,_]+(?:\.\.\.)?)\]?(?=[ ,]|$)", "", command).replace("NAME[:KEY=VALUE,...]", "NAME")
    plain = re.sub(r"\$\{?(\w+)\}?", lambda m: VARIABLES.get(m[1], m[0]), plain.replace("../../../", ""))
    words = shlex.split(plain, comments=True)[1:]
    found: list[str] = []
    for word in words:
        found += OF_ONE.get((words[0], word)) or STANDS_FOR.get(word) or (word,)
    if "inject" in found and found[found.index("inject") + 1 : found.index("inject") + 2] == ["..."]:
        found[found.index("inject") + 1 : found.index("inject") + 2] = ["--fault", FAULT]
    found = [word for word in found if word != "..."]
    if found[-1] in ("torchrun", "--"):
        found = [*found[: -1 if found[-1] == "torchrun" else None], *JOB]
    if found[0] == "run" and "--keep" in found and "--" not in found:
        found += ["--", *JOB]
    return tuple(found)


def _shown(command: str) -> Shown:
    words = _bound(command)
    if command in PARSED:
        return Shown(command, words, "parsed")
    if words[0] == "demo":
        return Shown(command, words, "demo")
    if (len(words) == 1 and words[0] in NAMED) or command in NAMED_OPTIONS:
        return Shown(command, (*words[:1], "--help"), "named")
    if words[0] == "attach" or "--pid" in words:
        return Shown(command, words, "live")
    if words[0] == "check" and {"--ranks", "--collectives", "--links", "--scale"} & set(words):
        return Shown(command, words, "ranks")
    return Shown(command, words, "run")


@cache
def shown() -> tuple[Shown, ...]:
    """Every command of every page, each once."""
    return tuple(_shown(command) for command in dict.fromkeys(c for page in PAGES for c in commands(page)))


if __name__ == "__main__":
    for how, count in Counter(one.how for one in shown()).most_common():
        print(f"{count:4} {how}")
    for text, reason in PARSED.items():
        print(f"parsed alone: {text}: {reason}")
