"""`unhang mcp`, asked by the SDK's own client over stdio."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import warm
from tests.slowness import slowness

HANGS = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.barrier()
dist.all_reduce(torch.ones(2))
"""
Asked = list[Any]
if TYPE_CHECKING:
    from mcp.client.client import Client


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program that hangs, and the report of a run of it."""
    root = tmp_path_factory.mktemp("root")
    (root / "train.py").write_text(HANGS)
    job = warm.forkrun("--eager", 2, root / "train.py")
    warm.run([*warm.UNHANG, "run", "--report-dir", "unhang-reports/one", "--", *job], root, 60 * slowness())
    return root


def ask(root: Path, *calls: tuple[str, dict[str, Any]], options: tuple[str, ...] = (), **env: str) -> Asked:
    """The results of calls to a server of its own."""

    async def talk(client: Client) -> Asked:
        return [await client.call_tool(name, arguments) for name, arguments in calls]

    return session(root, talk, options, **env)


def session(root: Path, talk: Callable[[Client], Awaitable[Any]], options: tuple[str, ...] = (), **env: str) -> Any:
    pytest.importorskip("mcp.server.mcpserver")  # a second of CPU time, for the one worker that asks
    import anyio
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    async def whole() -> Any:
        server = StdioServerParameters(command=warm.UNHANG[0], args=["mcp", "--root", str(root), *options], env=env)
        with anyio.fail_after(100 * slowness()):
            async with Client(server, read_timeout_seconds=90 * slowness()) as client:
                return await talk(client)

    return anyio.run(whole)


def told(result: Any) -> dict[str, Any]:
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


def refused(result: Any) -> str:
    assert result.is_error
    return str(result.content[0].text)


@pytest.mark.timeout(120)
def test_the_tools_and_what_they_cost(root: Path) -> None:
    async def talk(client: Client) -> tuple[Any, str]:
        return await client.list_tools(), str(client.instructions)

    listed, instructions = session(root, talk)
    assert {tool.name for tool in listed.tools} == {"diagnose", "attach", "explain", "check", "verify", "lint"}
    assert all(tool.description for tool in listed.tools)
    assert [tool.name for tool in listed.tools if not tool.annotations.read_only_hint] == ["attach"]
    assert len(json.dumps([tool.model_dump(mode="json", exclude_none=True) for tool in listed.tools])) < 5000
    assert "refute" in instructions


@pytest.mark.timeout(180)
def test_each_tool_answers(root: Path) -> None:
    one = "unhang-reports/one"
    results = ask(
        root,
        ("diagnose", {}),
        ("diagnose", {"paths": [one]}),
        ("lint", {"paths": ["train.py"]}),
        ("verify", {"before": [one], "after": [one]}),
        ("explain", {"what": "code-divergence"}),
        ("explain", {"what": "Watchdog caught collective operation timeout"}),
        ("check", {"areas": ["machine"]}),
    )
    newest, named, lint, verify, cause, line, check = map(told, results)
    assert newest["findings"] == named["findings"]
    finding = named["findings"][0]
    assert (named["outcome"], named["hang"]) == ("hang", "proven")
    assert finding["cause"] == "code-divergence"
    assert finding["culprits"] == "rank 0"
    assert "train.py:6" in finding["place"]
    assert finding["why"]
    assert finding["evidence"]
    assert finding["fix"]["verify"]
    assert (root / named["report"]).name == "report.html"
    assert [f["rule"] for f in lint["findings"]] == ["LNT101"]
    assert verify["verified"] is False
    assert "code-divergence" in verify["headline"]
    assert cause["meaning"]
    assert line["known"]
    assert check["outcome"]
    assert max(len(json.dumps(r.structured_content)) for r in results) <= 8000


@pytest.mark.timeout(180)
def test_a_job_that_runs_is_looked_at(root: Path) -> None:
    job = warm.popen(warm.forkrun("--eager", 2, root / "train.py"), root)
    try:
        deadline = time.monotonic() + 60 * slowness()
        found: dict[str, Any] = {}
        while found.get("outcome") != "stalled" and time.monotonic() < deadline:
            (result,) = ask(root, ("attach", {"target": str(job.pid), "seconds": 2}))
            found = {} if result.is_error else told(result)  # its ranks may not be there yet
        assert found["outcome"] == "stalled"
        assert (root / found["report"]).exists()
        assert job.poll() is None  # it was only looked at
    finally:
        warm.end(job)
    (gone,) = ask(root, ("attach", {"target": str(job.pid)}))
    assert str(job.pid) in refused(gone)


@pytest.mark.timeout(120)
def test_nothing_outside_the_root_is_read(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_text("ValueError: the secret\n")
    outside = str(tmp_path / "secret.log")
    (root / "link.log").symlink_to(outside)
    try:
        results = ask(
            root,
            ("diagnose", {"paths": [outside]}),
            ("diagnose", {"paths": ["link.log"]}),
            ("diagnose", {"paths": ["s3://bucket/dumps"]}),
            ("diagnose", {"paths": ["-"]}),
            ("diagnose", {"paths": ["--trace=x"]}),
            ("lint", {}),
            ("verify", {"before": [f"{root}/../x"], "after": ["unhang-reports/one"]}),
            ("verify", {"before": ["unhang-reports/one"], "after": []}),
            ("explain", {"what": outside}),
            ("explain", {"what": "link.log"}),
            ("explain", {"what": "-"}),
            ("attach", {"target": "--all"}),
            ("attach", {"seconds": 1e9}),
            ("check", {"areas": ["machine", "--ranks"]}),
            ("diagnose", {"paths": ["train.py"] * 65}),
        )
    finally:
        (root / "link.log").unlink()
    assert all("the secret" not in refused(result) for result in results)


@pytest.mark.timeout(120)
def test_a_call_has_a_limit(root: Path, tmp_path: Path) -> None:
    """The command stands still before it begins: whatever it may do, a busy server may look only once it is done."""
    (tmp_path / "sitecustomize.py").write_text("import sys, time\nif 'check' in sys.orig_argv: time.sleep(600)\n")
    began = time.monotonic()
    late, _ = ask(
        root,
        ("check", {}),
        ("explain", {"what": "straggler"}),
        options=("--time-limit", "0.05"),
        PYTHONPATH=str(tmp_path),
    )
    assert "not done within 0.05 s" in refused(late)
    assert time.monotonic() - began < 60 * slowness()
    (short,) = ask(root, ("explain", {"what": "code-divergence"}), options=("--most-characters", "1500"))
    assert len(json.dumps(told(short))) <= 1500


def test_without_the_sdk_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from unhang.cli.main import main

    monkeypatch.setattr("unhang.cli.explain.find_spec", lambda name: None)
    assert main(["mcp"]) == 2
    assert capsys.readouterr().err.strip().endswith("(pip install 'unhang[mcp]')")
