"""`unhang lint`: what it reads, what it writes, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from unhang.cli.lint import command
from unhang.errors import NotEvidence, WrongUsage

BROKEN = "import torch.distributed as dist\n\n\ndef f(rank):\n    if rank == 0:\n        dist.barrier()\n"


def lint(*arguments: str | Path, stdin: str | None = None) -> tuple[int, str]:
    """Exit code and output of the command."""
    result = CliRunner().invoke(command, [str(a) for a in arguments], input=stdin, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert isinstance(result.return_value, int)
    return result.return_value, result.output


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(BROKEN)
    return path


def test_a_finding_shows_its_way_and_what_to_do(broken: Path) -> None:
    code, text = lint("train.py")
    assert code == 1
    assert text.splitlines()[:4] == [
        "train.py:6:9: LNT101 dist.barrier() is called on some ranks only",
        "    because train.py:5  the condition `rank == 0` depends on the rank",
        "    ->      train.py:6  dist.barrier()",
        "    do      let every rank make the call; keep under `rank == 0` only what uses the result",
    ]


def test_calls_are_followed_through_files(broken: Path) -> None:
    (broken.parent / "metrics.py").write_text(
        "import torch.distributed as dist\n\n\ndef mean(x):\n    dist.all_reduce(x)\n"
    )
    (broken.parent / "between.py").write_text("from metrics import mean\n\n\ndef both(x):\n    return mean(x)\n")
    broken.write_text(
        "from between import both\nfrom torch.distributed import get_rank\n\n\ndef f(x):\n    if get_rank() == 0:\n        both(x)\n"
    )
    code, text = lint(".")
    assert code == 1
    assert "between.py:5  mean()" in text
    assert "metrics.py:5  dist.all_reduce()" in text


def test_nothing_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("print(1)\n")
    assert lint(".") == (0, "Nothing found that can hang (1 file, 1 lines).\n")


def test_the_program_may_come_on_stdin() -> None:
    code, text = lint("-", "--stdin-filename", "x.py", stdin=BROKEN)
    assert (code, text.split()[0]) == (1, "x.py:6:9:")


@pytest.mark.parametrize(
    "comment", ["# noqa", "# noqa: LNT101", "# noqa: E501, LNT101", "# unhang: ignore[LNT101] one rank only"]
)
def test_a_comment_leaves_a_line_alone(broken: Path, comment: str) -> None:
    broken.write_text(BROKEN.rstrip() + f"  {comment}\n")
    assert lint("train.py")[0] == 0


def test_another_comment_does_not(broken: Path) -> None:
    broken.write_text(BROKEN.rstrip() + "  # noqa: E501\n")
    assert lint("train.py")[0] == 1


def test_settings_of_the_project(broken: Path) -> None:
    project = broken.parent / "pyproject.toml"
    for table in (
        'ignore = ["LNT101"]',
        'exclude = ["train.py"]',
        'select = ["LNT4"]',
        'per-file-ignores = { "tr*.py" = ["LNT1"] }',
    ):
        project.write_text(f"[tool.unhang.lint]\n{table}\n")
        assert lint(".")[0] == 0, table
    project.write_text('[tool.unhang.lint]\nignore = ["LNT101"]\n')
    assert lint(".", "--select", "rank-dependent-collective")[0] == 1
    project.write_text("[tool.unhang.lint]\nselects = []\n")
    with pytest.raises(WrongUsage, match="has no key 'selects'"):
        lint(".")
    project.write_text("[tool.unhang.lint]\nselect = 3\n")
    with pytest.raises(WrongUsage, match="must be a list of strings"):
        lint(".")


def test_what_is_unknown_is_said(broken: Path) -> None:
    with pytest.raises(WrongUsage, match="no lint rule 'LNT999'"):
        lint(".", "--select", "LNT999")
    with pytest.raises(NotEvidence, match=r"nowhere\.py: no such file"):
        lint("nowhere.py")


def test_rules_that_are_off_are_asked_when_selected(broken: Path) -> None:
    broken.write_text("import torch.distributed as dist\n\ndist.init_process_group('gloo')\n")
    assert lint(".")[0] == 0
    assert "LNT402" in lint(".", "--extend-select", "no-timeout")[1]


def test_formats(broken: Path) -> None:
    found = json.loads(lint(".", "--format", "json")[1])
    assert found["schema"] == "unhang.lint/1"
    assert [(f["line"], f["code"], f["cause"]) for f in found["findings"]] == [(6, "LNT101", "code-divergence")]
    assert found["findings"][0]["way"][0]["line"] == 5
    sarif = json.loads(lint(".", "--format", "sarif")[1])
    assert sarif["version"] == "2.1.0"
    result = sarif["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 6, "startColumn": 9}
    assert sarif["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "LNT101"
    assert lint(".", "--format", "github")[1].startswith("::warning title=unhang (LNT101),file=train.py,line=6,col=9::")
    assert json.loads(lint(".", "--format", "gitlab")[1])[0]["location"] == {
        "path": "train.py",
        "lines": {"begin": 6},
    }
    assert "1  LNT101  rank-dependent-collective" in lint(".", "--statistics")[1]


def test_the_cache_says_the_same_and_sees_changes(broken: Path) -> None:
    first = lint(".")
    assert (broken.parent / ".unhang_cache").is_dir()
    assert lint(".") == first == lint(".", "--no-cache")
    for kept in (broken.parent / ".unhang_cache").rglob("result-*"):
        kept.write_bytes(b"\xc1 broken")
    assert lint(".") == first
    broken.write_text(BROKEN.replace("rank == 0", "world == 1"))
    assert lint(".")[0] == 0


def test_a_notebook(broken: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# x"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", BROKEN]},
    ]
    (broken.parent / "n.ipynb").write_text(json.dumps({"cells": cells}))
    assert "n.ipynb:7:9: LNT101" in lint("n.ipynb")[1]


def test_fixes(broken: Path) -> None:
    text = "import torch.distributed as dist\n\n\ndef f(x, m):\n    dist.all_reduce(x, async_op=True)  # é\n    l = m(x)\n    l.backward(retain_graph=True)\n"
    broken.write_text(text)
    retain = ("--extend-select", "retain-graph")
    code, patch = lint(".", "--diff", *retain)
    assert code == 1
    assert "+    dist.all_reduce(x)  # é" in patch
    assert "backward" not in patch.replace("l.backward(retain_graph=True)", "")
    assert broken.read_text() == text
    assert lint(".", "--fix", *retain)[0] == 1
    assert broken.read_text() == text.replace(", async_op=True", "")
    assert lint(".", "--fix", "--unsafe-fixes", *retain)[0] == 0
    assert "l.backward()" in broken.read_text()
    mended = broken.read_text()
    assert lint(".", "--fix", "--unsafe-fixes", *retain)[0] == 0
    assert broken.read_text() == mended
    with pytest.raises(WrongUsage):
        lint(".", "--unsafe-fixes")


def test_long_ways_with_conditions_are_told_when_asked_for(broken: Path) -> None:
    steps = "\n\n".join(f"def f{n}(x, y):\n    if y > {n}:\n        f{n + 1}(x, y)\n" for n in range(3))
    broken.write_text(
        f"import torch.distributed as dist\n\n\n{steps}\n\ndef f3(x, y):\n    dist.all_reduce(x)\n\n\n"
        "def main(x, y, rank):\n    if rank == 0:\n        f2(x, y)\n\n\n"
        "def other(x, y, rank):\n    if rank == 0:\n        f1(x, y)\n"
    )
    code, text = lint("--depth", "3", "train.py")
    assert (code, text.count("LNT101 f2()"), text.count("LNT101 f1()")) == (1, 1, 0)
    assert "1 more, less sure, with --depth 9." in text.splitlines()[-1]
    assert lint("--depth", "6", "train.py")[1].count("LNT101 f1()") == 1
    assert lint("train.py") == (code, text)
    (broken.parent / "pyproject.toml").write_text("[tool.unhang.lint]\ndepth = 6\n")
    assert lint("train.py")[1].count("LNT101 f1()") == 1


DOUBTS = {
    "another name than the rank's": "def f(x, model):\n    chosen = dist.get_rank() > 3\n    if chosen:\n        dist.barrier()\n",
    "a rank of a smaller group": "def f(x, tp_rank):\n    if tp_rank == 0:\n        dist.barrier()\n",
    "a receiver's name": "class LossTracker:\n    def end(self):\n        dist.barrier()\n\n\n"
    "def f(trackers, rank):\n    for tracker in trackers:\n        if rank == 0:\n            tracker.end()\n",
    "a result that is kept": "@functools.cache\ndef f(x):\n    dist.barrier()\n\n\ndef g(x, rank):\n    if rank == 0:\n        f(x)\n",
    "a path that is read": "def f(fabric, folder, state, newest):\n    if fabric.global_rank == 0:\n        folder.mkdir()\n"
    "    if newest is True:\n        newest = sorted(folder.glob('*'))[-1]\n    if newest:\n        fabric.load(newest, state)\n",
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_rests_on_a_doubt_is_told_when_asked_for(broken: Path, doubt: str) -> None:
    broken.write_text(f"import functools\n\nimport torch.distributed as dist\n\n\n{DOUBTS[doubt]}")
    assert lint("train.py")[0] == 0
    code, text = lint("--depth", "9", "train.py")
    assert (code, text.count(": LNT101 ") + text.count(": LNT106 ")) == (1, 1)
