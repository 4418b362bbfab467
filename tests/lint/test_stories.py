"""The faults of the stories that code can show: the broken version fires at the line that holds its marker, the fixed one is quiet."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks.hangbench.cases import own_faults

from unhang.lint.cards import LintSettings, chosen
from unhang.lint.checking import LintResult, lint_text

STORIES = Path(__file__).parents[2] / "examples" / "stories"
FAULTS = {
    ("masked_lm", "unused_head"): "LNT109",
    ("masked_lm", "uneven_eval"): "LNT110",
    ("gan_diffusion", "skipped_backward"): "LNT107",
    ("gan_diffusion", "rank0_sample"): "LNT103",
    ("async_rl", "metric_thread"): "LNT206",
    ("reid", "own_folder"): "LNT106",
    ("reid", "unused_mask"): "LNT109",
    ("reid", "swallowed"): "LNT203",
    ("reid", "nan_loss"): "LNT107",
    ("reid", "rank0_preview"): "LNT103",
    ("nanochat", "few_row_groups"): "LNT307",
    ("nanochat", "data_exhausted"): "LNT110",
    ("nanochat", "local_skip"): "LNT101",
    ("nanochat", "rank0_metric"): "LNT101",
}
# Faults of the benchmark that no reader of the program can see.
NOT_IN_CODE = {
    **dict.fromkeys([("masked_lm", "broken"), ("gan_diffusion", "broken"), ("async_rl", "broken")], "the process is stopped from outside"),
    **dict.fromkeys([("masked_lm", "slow_save"), ("nanochat", "slow_tokenizer")], "it is slow, and all wait for it"),
    **dict.fromkeys([("gan_diffusion", "stuck_item"), ("async_rl", "stuck_generator")], "it sleeps"),
    ("async_rl", "uneven_packing"): "batches of another process",
    ("nanochat", "checkpoint_folder"): "a folder that is not there yet is an error, not a hang",
}  # fmt: skip
# The order of two threads is asked for: in code that the rules had not seen 5 of 13 such findings were right.
WITH_ORDER = LintSettings(chosen((), ("collective-order-race",), ()))
MARKERS = {"own_folder": "here", "few_row_groups": "here"}


def with_fault(text: str, fault: str) -> str:
    """The program with every question after its fault answered, line by line as it was."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    questions = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Compare) and ast.unparse(n.left).endswith("fault")
    ]
    for node in sorted(questions, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        given = ast.literal_eval(node.comparators[0])
        among = fault in (given if isinstance(given, tuple) else (given,))
        answer = str(among == isinstance(node.ops[0], ast.Eq | ast.In))
        assert node.end_lineno == node.lineno
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + answer.encode() + line[node.end_col_offset :]
    return b"".join(lines).decode()


def judged(story: str, fault: str) -> tuple[LintResult, list[str]]:
    text = with_fault((STORIES / story / "train.py").read_text(), fault)
    return lint_text("train.py", text.encode(), WITH_ORDER), text.splitlines()


@pytest.mark.parametrize(("story", "fault"), FAULTS)
def test_the_broken_version_fires_at_its_marker(story: str, fault: str) -> None:
    result, lines = judged(story, fault)
    marker = f"# <- {MARKERS.get(fault, fault)}"
    places = [{f.line, *(line for _, line, _ in f.way)} for _, f in result.found if f.code == FAULTS[story, fault]]
    assert any(marker in lines[line - 1] for place in places for line in place), [f for _, f in result.found]
    # What hides the swallowed exception, a loss that is zero, also skips the step.
    also = ["LNT107", "LNT209"] if fault == "swallowed" else []
    assert {f.code for _, f in result.found} <= {FAULTS[story, fault], *also}


@pytest.mark.parametrize("story", sorted({story for story, _ in FAULTS}))
def test_the_fixed_version_is_quiet(story: str) -> None:
    assert judged(story, "none")[0].found == []


def test_every_fault_of_the_benchmark_shows_or_is_known_not_to() -> None:
    own = {(run.story, run.name.partition("/own-")[2]) for run in own_faults()}
    shown = {(story, {"own_folder": "broken", "few_row_groups": "broken"}.get(fault, fault)) for story, fault in FAULTS}
    assert own == shown | NOT_IN_CODE.keys()
    for story, fault in NOT_IN_CODE:
        assert judged(story, fault)[0].found == []


@pytest.mark.parametrize("program", ["healthy.py", "with_timeout.py"])
def test_the_healthy_programs_of_the_benchmark_are_quiet(program: str) -> None:
    path = STORIES.parents[1] / "benchmarks" / "hangbench" / "programs" / program
    assert lint_text(program, path.read_bytes(), LintSettings()).found == []
