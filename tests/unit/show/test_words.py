from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.show.cases import crash, hang
from tests.unit.show.odd_cases import large
from unhang.model import Frame, ProcessExit
from unhang.model.findings import fold_ranks, name_ranks
from unhang.show.paper import duration, printable
from unhang.show.stacks import compared, flat_tree, how_it_ended, interesting, last_calls, merged_stacks, source_around


def test_ranks_are_folded() -> None:
    assert fold_ranks([5, 0, 1, 2]) == "0-2, 5"
    assert fold_ranks(range(0, 4096, 2), most=3) == "0, 2, 4 and 2045 more"
    assert [name_ranks(r) for r in ([], [3], [3, 3], [3, 4])] == ["no rank", "rank 3", "rank 3", "ranks 3, 4"]


def test_control_and_direction_characters_are_spelled_out() -> None:
    assert printable("a\x1b[31m\u202eb\n\udc80\U000e0041é\u05d0") == "a\\x1b[31m\\u202eb\\x0a\\udc80\\U000e0041é\u05d0"
    assert printable("a\nb\tc\r", keep="\n\t") == "a\nb\tc\\x0d"
    assert printable("x" * 10, most=4) == "xxxx [... 6 more characters]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (0.9999, "1.0 s"),
        (4.21, "4.2 s"),
        (59.97, "1 min"),
        (7200, "2 h"),
        (1865, "31 min 5 s"),
        (7400, "2 h 3 min"),
    ],
)
def test_durations_read_as_a_person_says_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_source_is_shown_with_its_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("\n".join(f"line{n}" for n in range(1, 21)))
    lines = source_around(str(file), 10, around=2)
    assert [(s.number, s.text, s.is_it) for s in lines] == [
        (8, "line8", False), (9, "line9", False), (10, "line10", True), (11, "line11", False), (12, "line12", False),
    ]  # fmt: skip
    assert [s.number for s in source_around(str(file), 1)] == [1, 2, 3, 4, 5]


def test_only_small_regular_python_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("secret\n" * 9)
    (tmp_path / "link.py").symlink_to(secret)
    (tmp_path / "large.py").write_text("x\n" * 600_000)
    (tmp_path / "binary.py").write_bytes(b"a\0b\n" * 9)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "near.py").write_text("x\n" * 9)
    monkeypatch.chdir(tmp_path)
    for name in ("id_rsa", "link.py", "large.py", "binary.py", "folder.py", "gone.py", "nul\0.py"):
        assert source_around(str(tmp_path / name), 2) == ()
    assert source_around("near.py", 2) == ()
    assert source_around("/proc/self/environ", 1) == ()
    assert source_around(str(tmp_path / "near.py"), 99) == ()
    assert len(source_around(str(tmp_path / "near.py"), 2)) == 6


def test_the_culprit_stands_beside_the_call_of_its_peers() -> None:
    sample = hang()
    culprit, expected = compared(sample.case, sample.diagnosis.findings[0])
    assert culprit is not None
    assert culprit.title == "rank 0 is here"
    assert culprit.frames[-1].function == "barrier"
    assert expected is not None
    assert expected.frames[-1].function == "_engine_run_backward"


def test_an_error_speaks_before_a_stack() -> None:
    sample = crash()
    culprit, expected = compared(sample.case, sample.diagnosis.findings[0])
    assert culprit is not None
    assert culprit.title == "rank 2 raised IndexError here"
    assert expected is not None
    assert expected.title == "rank 0 was here"


def test_merged_stacks_fork_where_the_ranks_part() -> None:
    nodes, without = merged_stacks(hang().case)
    lines = [(depth, node.frame.function, sorted(node.ranks)) for depth, node in flat_tree(nodes)]
    assert without == ()
    assert lines == [
        (0, "<module>", [0, 1, 2, 3]),
        (0, "main", [0, 1, 2, 3]),
        (1, "train_epoch", [1, 2, 3]),
        (1, "backward", [1, 2, 3]),
        (1, "train_epoch", [0]),
        (1, "save_checkpoint", [0]),
        (1, "wrapper", [0]),
    ]


def test_a_deep_recursion_is_cut_in_the_middle() -> None:
    frames = tuple(Frame("/home/ada/a.py", n + 1, "f") for n in range(5000))
    path = interesting(frames)
    assert len(path) == 40
    assert (path[0].line, path[-1].line) == (5000, 1)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ProcessExit("signal", -9, 1), "ended by SIGKILL"),
        (ProcessExit("signal", -200, 1), "ended by signal 200"),
        (ProcessExit("exit", 0, 1), "ran to its end"),
        (ProcessExit("os._exit", 3, 1), "ended by os._exit with code 3"),
        (ProcessExit("vanished", None, 1), "vanished"),
    ],
)
def test_ends_are_named(end: ProcessExit, text: str) -> None:
    assert how_it_ended(end) == text


def test_last_calls_are_folded() -> None:
    calls = last_calls(large(world=64, calls=4, culprit=5).case)
    assert [(c.what, c.state, len(c.ranks)) for c in calls] == [
        ("all_reduce #5 of default_pg", "started", 63),
        ("all_reduce #4 of default_pg", "completed", 1),
    ]
