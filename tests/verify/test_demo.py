"""`unhang demo`: the stories are found, each has what it needs, and one is played."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from unhang.cli.verify import demo as command
from unhang.errors import UnreadableInput, WrongUsage
from unhang.model import CAUSES
from unhang.verify import HowToRun
from unhang.verify.stories import Story, choose, command_of, find_stories, play

FORKRUN = Path(__file__).parents[1] / "ranks" / "forkrun.py"
STORIES = find_stories()[0]


def test_every_story_is_whole() -> None:
    wrong = []
    for story in STORIES.values():
        parts = (story.title, story.believed, story.fix, story.broken, story.fixed)
        if not all(parts) or story.cause not in CAUSES or not (story.folder / story.file).exists():
            wrong.append(story.name)
        if not story.diff().strip():
            wrong.append(f"{story.name}: no diff")
    assert not wrong
    assert len(STORIES) >= 2


def test_an_installed_package_brings_the_stories_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parents[2] / "examples"
    shutil.copytree(examples / "stories", tmp_path / "unhang" / "stories")
    shutil.copytree(examples / "demo", tmp_path / "unhang" / "stories" / "demo")
    monkeypatch.setattr("unhang.verify.stories._PACKAGE", tmp_path / "unhang")
    packaged = find_stories()[0]
    assert list(packaged) == list(STORIES)
    assert all(story.folder.is_relative_to(tmp_path) and story.diff() for story in packaged.values())


def test_list() -> None:
    result = CliRunner().invoke(command, ["--list"], standalone_mode=False)
    assert result.return_value == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(STORIES)


def test_choose() -> None:
    assert choose("Demo", STORIES).name == "demo"
    with pytest.raises(WrongUsage, match=r"did you mean demo\?"):
        choose("demmo", STORIES)
    with pytest.raises(WrongUsage, match="there are demo"):
        choose("xyzzy", STORIES)


def test_stories_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="No such file"):
        find_stories(tmp_path)
    for text in ("[[story", 'schema = "other"', 'schema = "unhang.stories/1"\n[[story]]\nname = "x"\n'):
        (tmp_path / "stories.toml").write_text(text)
        with pytest.raises(UnreadableInput, match=r"stories\.toml"):
            find_stories(tmp_path)


def test_the_diff_of_two_programs_of_a_page_and_of_marked_lines(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("a\nb\n")
    (tmp_path / "fixed.py").write_text("a\nc\n")
    story = Story("x", "x", tmp_path, "python broken.py", "python fixed.py", "", (), "", "", "broken.py", "b")
    assert "-b\n+c\n" in story.diff()
    story = replace(story, fixed="python broken.py --well")
    assert story.diff() == "     1  a\n>    2  b\n"
    (tmp_path / "README.md").write_text("The fix:\n```diff\n-b\n+d\n```\nand more\n")
    assert story.diff() == "-b\n+d\n"


def test_a_repair_that_fits_no_more_is_said(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "train.py").write_text("new\n")
    story = replace(STORIES["demo"], folder=tmp_path / "program", patch=("train.py", "old\n", "mended\n"))
    with pytest.raises(UnreadableInput, match="does not fit any more"):
        story.copy(tmp_path / "copy", is_fixed=True)


def test_commands_are_run_by_our_own_interpreter() -> None:
    assert command_of("torchrun --standalone train.py")[1:] == [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "train.py",
    ]
    assert command_of("python train.py 'a b'")[1:] == ["train.py", "a b"]


def test_the_demo_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = f"python {FORKRUN} --eager 4 train.py"
    story = replace(STORIES["demo"], broken=run, fixed=run)
    code = play(story, tmp_path, HowToRun(50, 10, 5))
    out = capsys.readouterr().out
    assert code == 0, out
    places = [
        out.index(part)
        for part in (
            "What the team believed: the network",
            "HANG  rank 0 called all_reduce alone",
            "The fix",
            "+    line = describe(metrics)",
            "VERIFIED: code-divergence before, nothing after",
        )
    ]
    assert places == sorted(places)
    assert (tmp_path / "fixed" / "report.html").exists()


def test_a_wrong_verdict_is_not_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from .made_runs import clean_run, hung_run

    made = iter([hung_run(), clean_run()])
    monkeypatch.setattr("unhang.verify.make_run", lambda *_: next(made))
    code = play(replace(STORIES["demo"], culprits=(2,)), tmp_path, HowToRun())
    assert code == 1
    assert "unhang names code-divergence, rank 0" in capsys.readouterr().err
