"""Where numpy is missing: logs, settings and code are judged as they are with it; for recorded calls one line says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.read.made_dumps import as_json, dump, entry
from unhang.diagnosis import judge_paths
from unhang.show import render

INCIDENTS = sorted((Path(__file__).parents[1] / "incidents").glob("*.json"))[::90]
MISSING = "import sys; sys.modules.update(numpy=None, hyperscan=None); "
COMMAND = MISSING + "from unhang.cli.main import main; sys.exit(main())"
JUDGE = (
    MISSING
    + """import json, pathlib
from unhang.diagnosis import judge_paths
from unhang.show import render
for path in sys.argv[1:]:
    judged = judge_paths([pathlib.Path(path)])
    assert render(judged, "html").startswith(b"<!doctype html>")
    print(render(judged, "json").decode().replace("\\n", " "), end="\\0")
"""
)
BARE = "numpy is not installed here (recorded calls are read with numpy: pip install 'unhang[stacks]', or numpy alone)"


def bare(*words: object, cwd: Path, code: str = COMMAND) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    paths = []
    for incident in INCIDENTS:
        paths.append(tmp_path / f"{incident.stem}.log")
        paths[-1].write_text(json.loads(incident.read_bytes())["log"])
    return paths


def findings(report: str | bytes) -> Any:
    return json.loads(report)["findings"]


def test_logs_are_judged_alike(logs: list[Path], tmp_path: Path) -> None:
    done = bare(*logs, cwd=tmp_path, code=JUDGE)
    assert done.returncode == 0, done.stderr
    found = [findings(report) for report in done.stdout.split("\0") if report]
    assert found == [findings(render(judge_paths([path]), "json")) for path in logs]
    assert sum(map(bool, found)) > len(INCIDENTS) // 2


def test_dumps_need_it_and_say_so(logs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    for rank in (0, 1):
        (tmp_path / "dumps" / f"rank_{rank}.json").write_bytes(as_json(dump([entry(0)])))
    done = bare("diagnose", "dumps", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"unhang: {BARE}\n")
    done = bare("diagnose", "dumps", logs[0].name, "--format", "json", cwd=tmp_path)
    assert findings(done.stdout) == findings(render(judge_paths([logs[0]]), "json"))
    absent = json.loads(done.stdout)["inventory"]["absent"]
    assert any("dumps" in a["what"] and "unhang[stacks]" in a["reason"] for a in absent)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["explain", "retain_graph"], 0, "retain_graph"),
        (["explain", "collective operation timeout"], 0, "timeout"),
        (["env", "launch.sh"], 1, "NCCL_"),
        (["lint", "."], 1, "train.py:4"),
        (["run", "--", "python3", "-c", "print(6 * 7)"], 0, "42"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else None,
)
def test_what_needs_none(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("export NCCL_DEBUG=WRONG NCCL_P2P_DISABLED=1\ntorchrun train.py\n")
    (tmp_path / "train.py").write_text(
        "import torch\nimport torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.all_reduce(torch.ones(1))\n"
    )
    done = bare(*words, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stdout
    assert ("numpy is not installed: the job runs, and is not ended" in done.stderr) == (words[0] == "run")
