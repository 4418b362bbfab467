"""What `@unhang.record` leaves for the launcher, and that it changes nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import unhang
from unhang.errors import PeerFailed


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


class Mute(ValueError):
    def __str__(self) -> str:
        raise OSError("no message")


def _fails_with(error: BaseException) -> Any:
    @unhang.record
    def main() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        main()
    assert caught.value is error
    return error


def test_the_traceback_is_kept_where_torchrun_reads_it(error_file: Path) -> None:
    _fails_with(ValueError("schlecht: 你好 \ud800\nsecond line"))
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ValueError: schlecht: 你好 \ud800\nsecond line"
    assert "test_record.py" in message["extraInfo"]["py_callstack"]
    assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 30


def test_the_first_of_nested_ones_is_kept(error_file: Path) -> None:
    @unhang.record
    def outer() -> None:
        _fails_with(ValueError("inner"))
        raise OSError("outer")

    with pytest.raises(OSError, match="outer"):
        outer()
    assert "inner" in error_file.read_text()


def test_an_echo_is_later_than_what_it_echoes(error_file: Path) -> None:
    before = int(time.time())
    _fails_with(PeerFailed("rank 1 failed: ValueError"))
    assert int(json.loads(error_file.read_text())["message"]["extraInfo"]["timestamp"]) > before


@pytest.mark.parametrize("error", [Mute(), ValueError("x" * 1_000_000)])
def test_any_message(error: ValueError, error_file: Path) -> None:
    _fails_with(error)
    assert "raise error" in error_file.read_text()
    assert error_file.stat().st_size < 30_000


@pytest.mark.parametrize(("code", "is_kept"), [(0, False), (None, False), (3, True), ("text", True)])
def test_sys_exit(code: Any, is_kept: bool, error_file: Path) -> None:
    _fails_with(SystemExit(code))
    assert error_file.exists() == is_kept


def test_without_a_launcher_or_a_place_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    _fails_with(ValueError("a"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/proc/none/error.json")
    _fails_with(ValueError("a"))


def test_the_function_stays_what_it_was() -> None:
    @unhang.record
    def double(number: int, *, plus: int = 0) -> int:
        """Doubles."""
        return 2 * number + plus

    assert double(4, plus=1) == 9
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
