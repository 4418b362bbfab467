"""The areas `versions` and `environment`: three real ranks, one of which differs in each of several ways."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.check.forked import forked
from tests.slowness import slowness
from unhang.check import environment, versions
from unhang.check import versions as packages
from unhang.check.areas import CheckOptions, Context, Member, Participants
from unhang.check.checking import check, judged
from unhang.model import Case, Finding, Job, RankEvidence, RankIdentity, Reading
from unhang.rules.registry import all_rules
from unhang.show.verdict import to_json

_LIMIT_S = 50.0
TORCHRUN = {
    "OMP_NUM_THREADS": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


def alone(only: str, environ: Mapping[str, str], **options: object) -> list[Finding]:
    """The findings of one process."""
    checked = check(CheckOptions(areas=(only,), **options), environ, lambda text: None)  # type: ignore[arg-type]
    assert checked.diagnosis is not None
    assert [o for o in checked.diagnosis.outcomes if o.verdict == "error"] == []
    assert {o.verdict for o in checked.diagnosis.outcomes if o.rule in ("versions-differ", "environment-differs")} == {
        "skipped"
    }
    return list(checked.diagnosis.findings)


def test_a_healthy_process_gives_no_finding() -> None:
    assert alone("versions", TORCHRUN, code=Path(__file__).parent) == []
    assert alone("environment", TORCHRUN) == []
    assert alone("environment", {}) == []


def revision(folder: Path, line: str, when: str = "2026-01-01T00:00:00Z") -> None:
    """A repository with one commit."""
    folder.mkdir()
    (folder / "train.py").write_text(line)
    environ = {**os.environ, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "GIT_CONFIG_GLOBAL": os.devnull}
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", "-C", str(folder), *command], check=True, env=environ, timeout=20 * slowness())


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_three_ranks_of_which_each_differs_in_something(tmp_path: Path) -> None:
    """Rank 0 has another variable, rank 1 another numpy first on its path, rank 2 another revision of the code."""
    metadata = tmp_path / "other" / "numpy-1.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0.1\n")
    for rank in range(3):
        revision(tmp_path / f"code{rank}", "print(2)\n" if rank == 2 else "print(1)\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_DEBUG_SUBSYSTEM": "INIT"}
    differing = ({"NCCL_ALGO": "Ring"}, {"PYTHONPATH": str(metadata.parent.parent)}, {})

    def rank(number: int) -> list[dict[str, Any]]:
        sys.path[:0] = filter(None, [differing[number].get("PYTHONPATH")])  # as Python does with the variable
        environ = {**common, **differing[number], "RANK": str(number), "LOCAL_RANK": str(number)}
        options = CheckOptions(areas=("versions", "environment"), code=tmp_path / f"code{number}", join_limit_s=45)
        checked = check(options, environ, lambda text: None)
        assert checked.exit_code == 1
        assert (checked.diagnosis is None) == (number > 0)
        return json.loads(to_json(checked.diagnosis))["findings"] if checked.diagnosis else []

    importlib.import_module("torch.distributed")  # once, and not in each rank
    all_rules()
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(lambda number: forked(lambda: rank(number), _LIMIT_S), range(3)))
    assert told[1:] == [[], []]
    report = {"findings": told[0]}
    found = {(f["rule"], tuple(f["culprit_ranks"])): f for f in report["findings"]}
    assert set(found) == {
        ("versions-differ", (1,)),
        ("code-differs", (2,)),
        ("environment-differs", (0,)),
        ("environment-differs", (1,)),
        ("environment-settings", (0, 1, 2)),
    }
    assert "numpy 1.0.1, the others" in found["versions-differ", (1,)]["title"]
    assert "NCCL_ALGO=Ring, the others none" in found["environment-differs", (0,)]["title"]
    assert "PYTHONPATH" in found["environment-differs", (1,)]["title"]
    assert "NCCL_DEBUG_SUBSYS" in found["environment-settings", (0, 1, 2)]["title"]


def of_ranks(area: str, *environs: Mapping[str, str]) -> list[Finding]:
    """The findings on ranks with these environments."""
    all_rules()
    read: list[Reading] = []
    world = len(environs)
    module = {"environment": environment, "versions": versions}[area]
    for rank, environ in enumerate(environs):
        member = Member(rank, world, rank, world, host="node0")
        context = Context(Participants(member, None, (rank,)), CheckOptions(), environ)
        found = [r for r in module.probe(context) if isinstance(r, Reading)]
        read += [Reading(r.kind, r.subject, r.fields, rank, "node0") for r in found]
    ranks = {rank: RankEvidence(RankIdentity(rank, world)) for rank in range(world)}
    return list(judged(Case(job=Job(world_size=world), ranks=ranks, readings=tuple(read))).findings)


def test_a_misspelt_variable_is_told_with_its_right_name() -> None:
    found = alone("environment", {"NCCL_SOKET_IFNAME": "eth0"})
    assert [f.rule for f in found] == ["environment-settings"]
    assert "NCCL_SOKET_IFNAME" in found[0].title
    assert "NCCL_SOCKET_IFNAME" in " ".join(
        (found[0].title, found[0].because, *(f.setting + f.title for f in found[0].fixes))
    )


def test_what_torchrun_sets_differs_without_harm() -> None:
    environs = [
        {
            **TORCHRUN,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "CUDA_VISIBLE_DEVICES": str(rank),
            "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_x/none_y/attempt_0/{rank}/error.json",
            "NCCL_IB_HCA": f"mlx5_{rank}",
            "OMP_PLACES": "{" + str(rank) + "}",
        }
        for rank in range(4)
    ]
    assert of_ranks("environment", *environs) == []


def test_without_a_majority_nobody_is_accused() -> None:
    found = of_ranks("environment", {"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"})
    assert [(f.rule, f.culprit_ranks, f.severity) for f in found] == [("environment-differs", (), "wrong")]
    assert "no majority" in found[0].title
    assert "LL (rank 0)" in found[0].title


def test_variables_that_differ_on_the_same_rank_are_one_finding() -> None:
    plain = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "LD_LIBRARY_PATH": "/a"}
    other = {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Tree", "LD_LIBRARY_PATH": "/b"}
    found = [f for f in of_ranks("environment", plain, plain, other) if f.rule == "environment-differs"]
    assert [f.culprit_ranks for f in found] == [(2,)]
    assert all(name in found[0].title for name in plain)


def test_secrets_do_not_leave_the_process() -> None:
    environ = {
        "HF_TOKEN": "hf_abcdefghijklmnop",
        "TORCH_HUB_TOKEN": "abc",
        "CUDA_PROXY": "http://me:pass@proxy",
        "NCCL_NOTE": "ghp_0123456789abcdef",
        "WANDB_API_KEY": "0123",
        "NCCL_PROTO": "LL",
    }
    assert environment.variables(environ) == {"NCCL_PROTO": "LL"}


def test_a_long_value_can_still_be_compared() -> None:
    values = [
        environment.variables({"LD_LIBRARY_PATH": "/a:" * 2000 + end})["LD_LIBRARY_PATH"] for end in ("x", "y", "x")
    ]
    assert values[0] == values[2] != values[1]
    assert len(values[0]) < 1100


def test_the_plugin_of_one_rank_only(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").write_bytes(b"elf")
    found = of_ranks("versions", {}, {}, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert [(f.rule, f.culprit_ranks, f.severity) for f in found] == [("versions-differ", (2,), "wrong")]
    assert "NCCL network plugin libnccl-net.so, 3 bytes, the others none" in found[0].title


def test_a_driver_that_is_too_old_for_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "limited", forked)
    monkeypatch.setattr(packages, "torch_versions", lambda: {"torch": "2.13.0+cu130", "torch CUDA": "13.0"})
    monkeypatch.setattr(packages, "driver", lambda: "570.86.15")
    assert [f.rule for f in of_ranks("versions", {})] == ["driver-too-old"]
    compat = tmp_path / "compat"
    compat.mkdir()
    (compat / "libcuda.so.1").write_bytes(b"elf")
    assert of_ranks("versions", {"LD_LIBRARY_PATH": str(compat)}) == []
