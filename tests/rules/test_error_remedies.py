"""Each row of the tables of remedies: it knows its message as libraries raise it today, and no other row does."""

from __future__ import annotations

import ast
import inspect
import traceback
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from unhang.diagnosis import judge_case
from unhang.model import Frame, RaisedError, user_frames
from unhang.rules.known_repairs import all_rows, of_error, rows_for
from unhang.testing import log_case, make_case

_RAISED = Path(__file__).with_name("raised_errors.py")  # imported by the tests alone: it needs torch
_NAMES = [n.name for n in ast.parse(_RAISED.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)]
_RAISES = [name for name in _NAMES if not name.startswith("_")]
_TEXT = (Path(__file__).with_name("error_examples.txt")).read_text(encoding="utf-8").splitlines()
_EXAMPLES = [tuple(line.split(" :: ", 1)) for line in _TEXT if not line.startswith("#")]


def _row_of(function: str) -> str:
    return function.partition("__")[0].replace("_", "-")


def _example(text: str) -> RaisedError:
    place, text = text[1:].split("] ", 1) if text.startswith("[") else ("", text)
    kind, message = text.split(": ", 1)
    frames = (Frame(f"/venv/lib/site-packages/{place}", 7, "run"),) if place else ()
    return RaisedError(kind, message.replace("\\n", "\n").replace("\\t", "\t"), 0, frames)


@pytest.mark.parametrize("name", _RAISES)
def test_what_libraries_raise_has_its_row(name: str, tmp_path: Path) -> None:
    function = getattr(import_module("tests.rules.raised_errors"), name)
    given = [tmp_path] if inspect.signature(function).parameters else []
    with warnings.catch_warnings(action="ignore"), pytest.raises(BaseException) as raised:  # noqa: PT011
        function(*given)
    frames = tuple(Frame(f.filename, f.lineno or 0, f.name) for f in reversed(traceback.extract_tb(raised.tb)))
    error = RaisedError(raised.type.__name__, str(raised.value), 0, frames)
    found = [row.name for row in rows_for(error, next(iter(user_frames(frames)), None))]
    assert found == ([] if _row_of(name) == "nothing" else [_row_of(name)])


@pytest.mark.parametrize(("row", "text"), _EXAMPLES, ids=[f"{i}-{row}" for i, (row, _) in enumerate(_EXAMPLES)])
def test_messages_as_they_are_printed_have_their_row(row: str, text: str) -> None:
    assert [found.name for found in rows_for(_example(text), None)] == ([] if row == "none" else [row])


def test_every_row_is_whole_and_has_an_example() -> None:
    names = [row.name for row in all_rows()]
    assert len(names) == len(set(names))
    assert not set(names) - {row for row, _ in _EXAMPLES} - {_row_of(f) for f in _RAISES}
    for row in all_rows():
        fields = row.fields
        assert fields["source"].startswith("https://"), row.name
        assert sum(name in fields for name in ("advice", "command", "setting")) == 1, row.name
        assert fields.get("kind", "look") == "look", row.name
        assert len(fields["title"]) <= 120, row.name
        assert "\\n" not in fields.get("advice", ""), row.name


@pytest.mark.parametrize(("row", "text"), [e for e in _EXAMPLES if e[0] != "none"], ids=lambda part: part[:24])
def test_a_message_alone_is_told_in_whole_words(row: str, text: str) -> None:
    fix = of_error(_example(text), None)
    assert fix is not None, row
    told = " ".join((fix.title, fix.change))
    assert fix.change.strip()
    assert not any(word in told for word in ("{spot}", "{line}", "_line}", "``", ": ``")), told


@pytest.mark.parametrize(("row", "text"), [e for e in _EXAMPLES if e[0] != "none"], ids=lambda part: part[:24])
def test_no_other_rule_hides_the_remedy(row: str, text: str) -> None:
    error = _example(text)
    lines = (*(f'  File "{f.file}", line 7, in run\n    call()' for f in error.frames), error.text)
    head = ("Traceback (most recent call last):", '  File "/app/train.py", line 88, in main', "    step()")
    log = "".join(f"[rank2]: {line}\n" for line in "\n".join((*head, *lines)).splitlines())
    found = judge_case(log_case(log)).diagnosis.findings[0]
    assert found.rule in ("user-exception", "known-message")
    shown = of_error(error, Frame("/app/train.py", 88, "main"))
    assert shown is not None
    assert found.fixes[0].title == shown.title, row


def _program(folder: Path, text: str, line: int) -> Frame:
    file = folder / "train.py"
    file.write_text(text)
    return Frame(str(file), line, "main")


def test_a_place_in_the_program_is_named(tmp_path: Path) -> None:
    text = "with torch.inference_mode():\n    table = make()\ndef main():\n    loss = model(table)\n"
    fix = of_error(
        _example("RuntimeError: Inference tensors cannot be saved for backward."), _program(tmp_path, text, 4)
    )
    assert fix is not None
    assert fix.advice.startswith("# train.py:1: `with torch.inference_mode():`: what is made there")
    assert "where the tensor that train.py:4 uses was made" in fix.advice


def test_a_line_that_freezes_is_named(tmp_path: Path) -> None:
    text = "net.requires_grad_(True)\nhead.requires_grad_(False)\nloss.backward()\n"
    fix = of_error(
        _example("RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"),
        _program(tmp_path, text, 3),
    )
    assert fix is not None
    assert "# train.py:2: `head.requires_grad_(False)`: what it freezes" in fix.advice
    assert "toggle" not in fix.advice


@pytest.mark.parametrize(
    ("row", "text", "named"),
    [
        ("collate-none", "class Items:\n    def __getitem__(self, i):\n        return None\n", "# train.py:3, in place of `return None`"),
        ("loss-without-count", "class T(Trainer):\n    def compute_loss(self, model, inputs): ...\n", "# train.py:2, in place of `def compute_loss"),
        ("no-process-group", "f = size()\ninit_process_group('nccl')\n", "# train.py:2: `init_process_group('nccl')`: must come before train.py:1"),
    ],
)  # fmt: skip
def test_what_is_to_be_changed_is_named(row: str, text: str, named: str, tmp_path: Path) -> None:
    given = {
        **dict(_EXAMPLES),
        "no-process-group": "ValueError: Default process group has not been initialized, please",
    }
    fix = of_error(_example(given[row]), _program(tmp_path, text, 1))
    assert fix is not None
    assert fix.advice.startswith(named)


def test_what_a_library_does_itself_is_not_changed_in_the_program(tmp_path: Path) -> None:
    at = _program(tmp_path, "log(metrics)\n", 1)
    text = "dictionary changed size during iteration"
    assert of_error(RaisedError("RuntimeError", text, 0, (at,)), at) is not None
    below = Frame("/venv/lib/python3.11/site-packages/wandb/sdk/run.py", 7, "log")
    assert of_error(RaisedError("RuntimeError", text, 0, (below, at)), at) is None
    spawned = Frame("/usr/lib/python3.11/multiprocessing/spawn.py", 126, "_main")
    assert of_error(RaisedError("EOFError", "Ran out of input", 0, (spawned,)), None) is None


def test_a_method_of_another_library_is_no_load_of_torch(tmp_path: Path) -> None:
    error = _example(dict(_EXAMPLES)["saved-on-a-device"])
    fix = of_error(error, _program(tmp_path, "x = json.load(f)\ny = torch.load(path)\n", 2))
    assert fix is not None
    assert fix.advice.startswith("# train.py:2: `y = torch.load(path)`\n")


def test_two_places_are_not_guessed_between(tmp_path: Path) -> None:
    text = "model = DDP(net)\nother = DDP(net)\nloss.backward()\n"
    error = _example(dict(_EXAMPLES)["changed-buffer"])
    fix = of_error(error, _program(tmp_path, text, 3))
    assert fix is not None
    assert (fix.kind, "train.py:1" in fix.advice) == ("look", False)
    (tmp_path / "b").mkdir()
    fix = of_error(error, _program(tmp_path / "b", text.replace("other = DDP(net)", "other = DDP(net, **more)"), 3))
    assert fix is not None
    assert (fix.kind, "# train.py:1: `model = DDP(net)`" in fix.advice) == ("", True)


def test_what_next_has_no_more_of_needs_a_line_that_asks(tmp_path: Path) -> None:
    error = RaisedError("StopIteration", "", 0, ())
    assert of_error(error, _program(tmp_path, "batch = next(batches)\n", 1)) is not None
    (tmp_path / "b").mkdir()
    assert of_error(error, _program(tmp_path / "b", "batch = take(batches)\n", 1)) is None
    assert of_error(error, None) is None


def test_a_step_of_lightning_without_a_loss(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "class Net:\n    def training_step(self, batch):\n        if not len(batch):\n            return None\n        return loss(batch)\n"
    )
    fix = of_error(_example(dict(_EXAMPLES)["step-without-loss"]), _program(tmp_path, "fit()\n", 1))
    assert fix is not None
    assert fix.advice.startswith("# net.py:4, in place of `return None`\n")


def test_an_allocation_that_no_machine_could_give(tmp_path: Path) -> None:
    at = _program(tmp_path, "\n\nx = torch.ones(n, n)\n", 3)
    huge = of_error(_example("RuntimeError: you tried to allocate 163835750427556 bytes."), at)
    assert huge is not None
    assert huge.title == "Bound what comes in at train.py:3: no machine has 164 TB"
    assert of_error(_example("RuntimeError: you tried to allocate 16383575042 bytes."), at) is None


def test_a_job_gets_the_remedy_first() -> None:
    case = make_case({}, errors={1: "RuntimeError: stack expects each tensor to be equal size, but got [2] at entry 0 and [3] at entry 1@main:9>load:31"},
                     hang=None, exit_code=1)  # fmt: skip
    found = judge_case(case).diagnosis.findings[0]
    assert (found.rule, found.culprit_ranks) == ("user-exception", (1,))
    assert found.fixes[0].title == "Pad the items of a batch to one size in a collate function"
    assert found.fixes[0].mends


def test_a_log_gets_it_as_well() -> None:
    head = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/app/train.py", line 88, in <module>\n[rank2]:     loss.backward()\n'
    case = log_case(f"{head}[rank2]: RuntimeError: grad can be implicitly created only for scalar outputs\n")
    found = judge_case(case).diagnosis.findings[0]
    assert (found.rule, found.culprit_ranks) == ("user-exception", (2,))
    assert found.fixes[0].advice == "loss.mean().backward()   # train.py:88"
    alone = judge_case(
        log_case("RuntimeError: grad can be implicitly created only for scalar outputs\n")
    ).diagnosis.findings
    assert alone[0].fixes[0].advice == "loss.mean().backward()   # the line that raises"
