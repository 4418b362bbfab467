"""A real Ray cluster of two nodes gives the answer of local processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.slowness import slowness

HERE = Path(__file__).parent
HELPERS = [HERE.parent / "unit" / "read", HERE.parent / "unit" / "read" / "dumps"]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """For a cluster that listens on the loopback interface only; ends what the test would leave of it."""
    path = os.pathsep.join([*map(str, HELPERS), os.environ.get("PYTHONPATH", "")])
    more = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp", ignore_cleanup_errors=True
    ) as short:  # sockets lie there
        yield {**os.environ, **more, "RAY_TMPDIR": short}
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == short:
                    process.kill()
            except psutil.Error:
                continue


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is missing")
def test_two_nodes_give_what_one_machine_gives(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, str(HERE / "ray_job.py"), str(tmp_path), str(2 + slowness())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55 * slowness())
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["same"]
    assert found["same_again"]
    assert found["rows"] == 37 * 6
    assert sorted(found["absent"]) == ["dump of rank 11", "dump of rank 17", "dump of rank 5"]
    assert found["writeable"]
    assert found["progress"][-1] == [40, 40]
    assert [what for what, _ in found["lost"]] == ["dump of rank 0"]
    assert "Ray task that decoded it failed" in found["lost"][0][1]
    assert found["nodes"] == 2
    assert "see 'ray status'" in found["unanswered"]
    assert not found["connected"]
    assert found["left"] == 0
