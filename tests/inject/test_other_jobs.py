"""Faults that are no hang, together in one job; other launchers and orders; faults that cannot happen."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ranks.faults import HERE as RANKS
from tests.slowness import slowness

from .jobs import TRAINING, UNHANG, Done, inject, job, line_of, unhang_run
from .test_faults import HUNG_JOB_ENDED, check_happened

SPAWNED = RANKS / "programs" / "spawned.py"


def _said(done: Done) -> dict[int, dict[str, float]]:
    """What each rank printed at its end."""
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["rank"]: line for line in lines}


def test_silent_faults_corrupt_the_training_and_nobody_is_accused(tmp_path: Path) -> None:
    """Without a check in the program nothing tells: that must not lead to a guess."""
    faults = [
        "wrong_result:rank=1,op=all_reduce,call=3",
        "wrong_weight:rank=2,step=2",
        "clock_jump:rank=0,step=1",
        "missing_wait:rank=0",
    ]
    done = inject(faults, job(0, 1), tmp_path)
    check_happened(done, faults)
    assert done.exit_code == 0, done
    assert done.report["outcome"] == "clean", done
    assert done.report["findings"] == [], done
    said = _said(done)
    assert said[2]["weights"] != said[0]["weights"] == said[1]["weights"], said
    assert said[0]["spread"] < 1e-3 < said[1]["spread"], said
    assert said[0]["seconds"] > 3000 > said[1]["seconds"], said


def test_a_wrong_reduction_and_a_training_that_does_not_learn(tmp_path: Path) -> None:
    faults = ["wrong_reduce_op:rank=1,call=3", "not_learning:step=0"]
    done = inject(faults, job(0, 1), tmp_path, is_watched=False)
    check_happened(done, faults)
    assert {e["rank"] for e in done.record if e["fault"] == "not_learning"} == {0, 1, 2}, done
    said = _said(done)
    assert len({s["weights"] for s in said.values()}) == 1, said
    assert all(s["spread"] > 0.1 for s in said.values()), said  # each rank reduces a part, for all


def test_a_corrupted_weight_is_told_where_the_program_compares(tmp_path: Path) -> None:
    done = inject(["wrong_weight:rank=1,step=2"], job(0, 2, 1), tmp_path)
    check_happened(done, ["wrong_weight"], "optimizer.step()")
    assert "rank 1 differs from ranks 0, 2" in done.stderr, done
    first = done.report["findings"][0]
    assert (done.report["outcome"], first["rule"], first["culprit_ranks"]) == ("clean", "silent-desync", [1]), done


def test_a_straggler_is_found(tmp_path: Path) -> None:
    done = inject(["straggler:rank=2,step=0,delay=0.25"], job(0, 3), tmp_path)
    check_happened(done, ["straggler"], "optimizer.step()")
    assert done.report["outcome"] == "straggler", done
    assert [(f["cause"], f["culprit_ranks"]) for f in done.report["findings"]] == [("straggler", [2])], done
    assert done.exit_code == 0, done


def test_slow_faults_happen_and_the_job_goes_on(tmp_path: Path) -> None:
    faults = [
        "straggler_growing:rank=0,delay=0.001", "straggler_periodic:rank=1,delay=0.01", "slow_disk:rank=2,delay=0.01",
        "slow_loader:rank=0,delay=0.01", "slow_link:rank=1,delay=0.01", "slow_first_batch:rank=2,seconds=0.1",
        "event_wait:rank=0,seconds=0.1", "late_rank:rank=2,seconds=0.1",
    ]  # fmt: skip
    done = inject(faults, job(0, 1), tmp_path, is_watched=False)
    check_happened(done, faults)
    assert done.exit_code == 0, done


def test_signals_end_their_ranks(tmp_path: Path) -> None:
    faults = ["sigabrt:rank=0,step=2", "sigsegv:rank=1,step=2", "sigterm:rank=2,step=2"]
    done = inject(faults, job(0, 1), tmp_path, is_watched=False)
    check_happened(done, faults, "optimizer.step()")
    assert done.exit_code not in (0, 3), done


def test_lost_connections_accuse_nobody_else(tmp_path: Path) -> None:
    done = inject(["lost_connections:rank=1,step=2"], job(0, 1), tmp_path)
    check_happened(done, ["lost_connections"], "optimizer.step()")
    assert done.report["outcome"] == "crash", done
    assert [(f["rule"], f["culprit_ranks"]) for f in done.report["findings"]] == [("network-unstable", [])], done
    assert "Connection closed by peer" in done.stderr, done


def test_a_wrong_root_accuses_nobody_else(tmp_path: Path) -> None:
    done = inject(["wrong_root:rank=1"], job(0, 1), tmp_path)
    check_happened(done, ["wrong_root"], "dist.broadcast(setting")
    assert done.report["findings"], done
    first = done.report["findings"][0]
    assert (first["rule"], first["cause"]) == ("roots-disagree", "code-divergence"), done
    assert first["location"]["line"] == line_of("dist.broadcast(setting"), done
    assert "rank 1 names 1" in first["title"], done
    assert {r for f in done.report["findings"] for r in f["culprit_ranks"]} <= {1}, done
    assert done.exit_code == HUNG_JOB_ENDED, done


@pytest.mark.whole
def test_a_skipped_backward_before_a_ring_of_transfers_accuses_the_rank_that_skipped(tmp_path: Path) -> None:
    """Rank 2 waits for rank 1 in the backward pass and rank 1 for a message: a circle, closed by rank 1 alone."""
    lines = TRAINING.read_text().splitlines(keepends=True)
    at = {
        name: next(i for i, x in enumerate(lines) if f" {name}(rank," in x and "def" not in x)
        for name in ("agree", "exchange")
    }
    lines.insert(at["agree"], lines.pop(at["exchange"]))
    script = tmp_path / "ring_first.py"
    script.write_text("".join(lines))
    done = inject(["nan_batch:rank=1,batch=3"], job(0, 1, script=script), tmp_path)
    assert [(f["rule"], f["cause"], f["culprit_ranks"]) for f in done.report["findings"]] == [
        ("call-left-out", "code-divergence", [1])
    ], done
    assert lines[done.report["findings"][0]["location"]["line"] - 1].strip() == "loss.backward()", done


def test_a_stopped_rank_is_told_before_any_patience_runs_out(tmp_path: Path) -> None:
    done = inject(["sigstop:rank=1,step=2"], job(0, 1), tmp_path, stall_after_s=300)
    first = done.report["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("rank-frozen", [1]), done
    assert done.exit_code == HUNG_JOB_ENDED, done


@pytest.mark.parametrize(
    ("fault", "timeout_s", "cause", "culprit", "is_named"),
    [
        ("late_rank:rank=1", 600, "rendezvous-incomplete", 1, True),
        pytest.param("unset_variable:rank=1", 600, "launcher-misuse", 1, True, marks=pytest.mark.whole),
        ("port_in_use", 600, "port-in-use", 0, True),
        ("refused_port:rank=2", 3, "rendezvous-endpoint", 2, False),
        pytest.param("refused_port:rank=2", 600, "rendezvous-endpoint", 2, True, marks=pytest.mark.whole),
    ],
)
def test_faults_of_the_start_are_found(
    fault: str, timeout_s: int, cause: str, culprit: int, is_named: bool, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = inject([fault], job(0, 1, 0, timeout_s, port=port), tmp_path)
    check_happened(done, [fault], "dist.init_process_group(")
    first = done.report["findings"][0]
    assert first["cause"] == cause, done
    assert first["culprit_ranks"] in ([[culprit]] if is_named else [[culprit], []]), done


@pytest.mark.whole
def test_spawned_ranks_and_the_other_order(tmp_path: Path) -> None:
    """The rank is an argument of the program, and `unhang run` stands outside."""
    record = tmp_path / "record.jsonl"
    inner = [*UNHANG, "--fault", "skip_collective:rank=1,call=1", "--record", str(record), "--"]
    command = [*inner, sys.executable, str(SPAWNED), str(tmp_path / "store")]
    done = inject(
        ["sigkill:rank=3,step=9"], [*unhang_run(), str(tmp_path / "report"), "--", *command], tmp_path, is_watched=False
    )
    struck = json.loads(record.read_text().splitlines()[0])
    assert (struck["fault"], struck["rank"], Path(struck["file"]).name) == ("skip_collective", 1, "spawned.py")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["outcome"] == "hang", done
    assert report["findings"][0]["cause"] == "code-divergence", report["findings"]


@pytest.mark.whole
@pytest.mark.torchrun
def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = inject(["skip_collective:rank=1,call=5"], [*torchrun, *job(0, 1)[3:]], tmp_path)
    check_happened(done, ["skip_collective"], "dist.all_reduce(loss)")
    first = done.report["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("code-divergence", [1]), done


def test_a_program_without_a_launcher(tmp_path: Path) -> None:
    """It is rank 0; and a fault that it cannot have says why."""
    script = tmp_path / "alone.py"
    script.write_text(
        "import torch\nw = torch.zeros(2, requires_grad=True)\no = torch.optim.SGD([w], 0.1)\n"
        "for _ in range(9):\n    w.sum().backward()\n    o.step()\n"
    )
    faults = ["early_exit:step=3,code=7", "stuck_loader", "skip_collective"]
    done = inject(faults, [sys.executable, str(script)], tmp_path, is_watched=False)
    assert [(e["fault"], e["rank"], e["line"]) for e in done.record] == [("early_exit", 0, 6)], done
    assert done.exit_code == 7, done
    assert "fault stuck_loader never happened: the program has no torch.utils.data.DataLoader" in done.stderr
    assert "fault skip_collective never happened: the program has no explicit collective call" in done.stderr


def test_without_any_fault_the_exit_code_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sitecustomize of the user's still runs, and a program without torch is left alone."""
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = inject(["sigkill"], [sys.executable, "-c", "print('hello')"], tmp_path, is_watched=False)
    assert done.stdout.split() == ["mine", "hello"], done
    assert done.exit_code == 3, done
    assert "fault sigkill never happened: the program has no optimizer step" in done.stderr, done
    assert inject(["sigkill"], ["/nowhere/at/all"], tmp_path, is_watched=False).exit_code == 3


def test_a_signal_reaches_the_job(tmp_path: Path) -> None:
    program = "import time; open('up', 'w').close(); time.sleep(50)"
    process = subprocess.Popen(
        [*UNHANG, "--fault", "sigkill", "--", sys.executable, "-c", program],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20 * slowness())  # the job would last longer
    assert process.returncode == 3, stderr
    assert "never happened" in stderr
