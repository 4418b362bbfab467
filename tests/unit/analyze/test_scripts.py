"""Which files of a folder are the program that is judged: other scripts beside the one that runs are other programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unhang.analyze.program.callpath import scripts_of
from unhang.analyze.program.shared_state import label_set
from unhang.analyze.program.trees import judge_program_of, program_files
from unhang.testing import make_case

_SCRIPT = "from toy import net\nimport kit\ndef main():\n    net()\n{end}\n"


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    yield
    judge_program_of(())


@pytest.mark.parametrize("end", ["main()", 'if __name__ == "__main__":\n    main()'])
def test_scripts_beside_the_one_that_runs_are_other_programs(end: str, tmp_path: Path) -> None:
    for name in ("train", "other"):
        (tmp_path / f"{name}.py").write_text(_SCRIPT.format(end=end))
    (tmp_path / "toy.py").write_text("def net():\n    return 1\n")
    (tmp_path / "kit.py").write_text('def run():\n    pass\nif __name__ == "__main__":\n    run()\n')  # imported, too
    (tmp_path / "plugin.py").write_text("RATE = 3\n")  # what is no script may be loaded in any way

    def names() -> set[str]:
        return {Path(p).stem for p in program_files(str(tmp_path))}

    everything = {"train", "other", "toy", "kit", "plugin"}
    assert names() == everything
    judge_program_of([str(tmp_path / "train.py")])
    assert names() == everything - {"other"}
    judge_program_of(["/elsewhere/train.py"])
    assert names() == everything


def test_what_was_read_of_another_program_is_forgotten(tmp_path: Path) -> None:
    text = "def main(labels):\n    labels[0] = 255\n\nmain([1])\n"
    (tmp_path / "other.py").write_text(text)
    (tmp_path / "train.py").write_text("def main():\n    pass\n\nmain()\n")
    before = label_set(str(tmp_path), 255)
    judge_program_of([str(tmp_path / "train.py")])
    assert before is not None
    assert label_set(str(tmp_path), 255) is None


def test_the_scripts_of_a_case_are_where_its_stacks_begin() -> None:
    case = make_case({0: ["all_reduce[8]@main:3>step:9"]}, stacks={1: "main:5>~comm"})
    assert scripts_of(case) == {"train.py"}
