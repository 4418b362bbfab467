"""The catalogue: every fault names rules that exist, and what is asked for wrongly is said in one line."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import unhang.inside.inject
from unhang.cli.reproduce import NoSuchFault, RecordNotWritten
from unhang.cli.reproduce import inject as command
from unhang.inside.inject import FAULTS, BadFault, read_fault, why_not
from unhang.inside.inject.fault import Armed
from unhang.model import CAUSES
from unhang.rules.registry import all_rules

from .unreached import unreached_rules


def test_there_are_faults_for_every_kind() -> None:
    assert len(FAULTS) >= 30
    assert {f.family for f in FAULTS.values()} == {
        "collectives", "order", "data", "process", "files", "network", "time", "results",
    }  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda f: f.name)
def test_every_fault_names_rules_that_exist(fault: object) -> None:
    rules = {rule.id for rule in all_rules()}
    assert fault.found_by  # type: ignore[attr-defined]
    assert set(fault.found_by) <= rules  # type: ignore[attr-defined]
    assert fault.cause in {"", *CAUSES}  # type: ignore[attr-defined]
    names = [p.name for p in fault.parameters]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))


def test_every_fault_is_done_to_a_real_job() -> None:
    text = "".join((Path(__file__).parent / f"test_{name}.py").read_text() for name in ("faults", "other_jobs"))
    assert [name for name in FAULTS if f'"{name}:' not in text and f'"{name}"' not in text] == []


def test_the_rules_that_no_fault_reaches_are_known() -> None:
    """Those on devices and fabrics remain; `python -m tests.inject.unreached` prints them."""
    unreached = set(unreached_rules())
    assert "fabric-manager" in unreached
    assert not unreached & {"straggler", "dataloader-hang", "rank-crashed", "size-mismatch", "rank-stuck-in-user-code"}


def test_values_are_read_with_their_limits() -> None:
    fault, values = read_fault("skip-collective:rank=2, call=5,op=all_reduce")
    assert fault.name == "skip_collective"
    assert values == {"rank": 2, "step": None, "call": 5, "op": "all_reduce"}
    assert read_fault("p2p_cycle")[1]["rank"] == "all"
    assert read_fault("straggler:delay=0.5")[1]["delay"] == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("skip_colective", "there is no fault 'skip_colective'; did you mean skip_collective?"),
        ("zzz", "there is no fault 'zzz'"),
        ("sigkill:rnk=1", "sigkill has no parameter 'rnk'; did you mean rank?"),
        ("sigkill:zzz=1", "sigkill has no parameter 'zzz'; it has rank, step, call"),
        ("sigkill:rank", "sigkill: rank needs a value: rank=..."),
        ("sigkill:rank=-1", "sigkill: rank=-1: must be a whole number from 0 to 1e+07, or all"),
        ("straggler:delay=nan", "straggler: delay=nan: must be a number from 0.001 to 3600"),
        ("skip_collective:op=all_reduc", "skip_collective: op=all_reduc; did you mean all_reduce?"),
        ("failing_disk:error=EMAGIC", "failing_disk: error=EMAGIC: must be ENOSPC or EIO or EROFS or EDQUOT or ESTALE"),
    ],
)
def test_a_bad_fault_is_one_line_with_the_nearest_name(text: str, message: str) -> None:
    with pytest.raises(BadFault) as raised:
        read_fault(text)
    assert str(raised.value) == message


def test_the_list_is_complete() -> None:
    told = json.loads(CliRunner().invoke(command, ["--list", "--format", "json"]).output)
    assert [f["name"] for f in told["faults"]] == list(FAULTS)
    text = CliRunner().invoke(command, ["--list"]).output
    assert all(f"  {name} " in text for name in FAULTS)


def test_bad_usage_is_said_before_anything_is_started(tmp_path: Path) -> None:
    never = [sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"]
    for arguments in ([], ["--fault", "zzz"], ["--fault", "sigkill:rank=x"]):
        with pytest.raises(NoSuchFault):
            CliRunner().invoke(command, [*arguments, "--", *never], catch_exceptions=False, standalone_mode=False)
    nowhere = ["--fault", "sigkill", "--record", str(tmp_path / "no" / "folder")]
    with pytest.raises(RecordNotWritten):
        CliRunner().invoke(command, [*nowhere, "--", *never], catch_exceptions=False, standalone_mode=False)
    assert not (tmp_path / "started").exists()


def _armed(name: str, seed: int) -> Armed:
    fault, values = read_fault(name)
    return Armed(fault, values, seed, 0, ())


def test_what_is_not_given_is_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unhang.inside.inject.program.world_size", lambda: 64)
    drawn = {(a.rank, a.value("call")) for a in (_armed("skip_collective", seed) for seed in range(30))}
    again = {(a.rank, a.value("call")) for a in (_armed("skip_collective", seed) for seed in range(30))}
    assert drawn == again
    assert len(drawn) > 20
    assert {call for _, call in drawn} <= set(range(2, 7))
    assert all(0 <= int(rank) < 64 for rank, _ in drawn)
    assert _armed("skip_collective:rank=5,step=9", 3).rank == 5
    assert _armed("skip_collective:rank=5,step=9", 3).value("call") is None


def test_why_a_fault_did_not_happen() -> None:
    fault, values = read_fault("stuck_loader:rank=3,batch=7")
    met = [{"rank": 0, "world_size": 4}, {"rank": 3, "world_size": 4}]
    assert why_not(fault, values, []) == "the program has no torch.utils.data.DataLoader"
    assert why_not(fault, {**values, "rank": 9}, met) == "there is no rank 9 (world size 4)"
    assert why_not(fault, {**values, "rank": 2}, met) == "rank 2 did not come there, only 0, 3"
    assert why_not(fault, values, met) == "batch 7 was never reached"


def test_the_job_needs_nothing_but_the_standard_library() -> None:
    """And no torch at import: it is looked up where it is used."""
    for path in Path(unhang.inside.inject.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] in {*sys.stdlib_module_names, "__future__"}, path
