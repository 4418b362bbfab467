"""A copy of dumps bears the time of the copy: no number comes from it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dumps.small_dumps import STARTED, call, job
from tests.slowness import slowness
from unhang.cli.main import main

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "make_dumps.py"
HOURS_NS = 3600 * 10**9
NUMBERS = re.compile(r"after the (?:start|onset)|found [^.]*later|[Ff]ound after|had waited for|nothing had moved for")


def reports(dumps: Path, folder: Path) -> dict[str, str]:
    """All that `unhang diagnose` writes of a folder of dumps."""
    found = {}
    for output_format in ("text", "json", "html"):
        output = folder / f"report.{output_format}"
        arguments = ["diagnose", str(dumps), "--no-cache", "--format", output_format, "--output", str(output)]
        assert main(arguments) == 1
        found[output_format] = output.read_text()
    return found


def copied(dumps: Path, later_ns: int) -> None:
    for path in dumps.rglob("*"):
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + later_ns))


@pytest.fixture(params=["small", "64 ranks"])
def dumps(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    if request.param == "small":
        calls = {r: [call("all_reduce") for _ in range(5)] for r in range(4)}
        return job({r: [*c, call("all_reduce", state=STARTED)] if r != 3 else c for r, c in calls.items()}).write(
            folder
        )
    subprocess.run(
        [sys.executable, SCRIPT, folder, "--entries", "60"], check=True, capture_output=True, timeout=50 * slowness()
    )
    return folder


def test_no_number_comes_from_the_times_of_files(dumps: Path, tmp_path: Path) -> None:
    before = reports(dumps, tmp_path)
    copied(dumps, 7654 * HOURS_NS)
    after = reports(dumps, tmp_path)
    assert after == before
    for text in after.values():
        assert NUMBERS.search(text) is None, NUMBERS.search(text)
    assert "suspected hang" in after["text"]
    hang = json.loads(after["json"])["hang"]
    assert (hang["kind"], hang["onset_s"], hang["detected_after_s"]) == ("suspected", None, None)
    assert hang["waiting_ranks"]


def test_the_verdict_on_dumps_older_than_their_entries_is_the_same(dumps: Path, tmp_path: Path) -> None:
    before = reports(dumps, tmp_path)
    copied(dumps, -7654 * HOURS_NS)
    assert reports(dumps, tmp_path) == before
