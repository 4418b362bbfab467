"""The examples in the docstrings of sections, heartbeats and loaders run as they are printed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

import unhang
from unhang.inside.guards import forecast as check
from unhang.inside.guards import heartbeat, section
from unhang.inside.guards import loader as watch

PUBLIC = {
    "section": section.section,
    "sections": section.sections,
    "heartbeat": heartbeat.heartbeat,
    "check_loader": check.check_loader,
    "watch_loader": watch.watch_loader,
}
DOCUMENTED = {**PUBLIC, "Heartbeat.phase": heartbeat.Heartbeat.phase}


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=600))
    yield
    dist.destroy_process_group()


def code_of(name: str) -> str:
    """The code below `Example:`."""
    doc = textwrap.dedent("    " + (DOCUMENTED[name].__doc__ or ""))
    _, _, after = doc.partition("Example:\n")
    lines = after.splitlines()
    indented = [line for line in lines if line.strip()]
    depth = len(indented[0]) - len(indented[0].lstrip())
    taken = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) < depth:
            break
        taken.append(line[depth:])
    return "\n".join(taken)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for public, thing in PUBLIC.items():
        monkeypatch.setattr(unhang, public, thing, raising=False)
    exec(compile(code_of(name), name, "exec"), {"__name__": "__main__"})


def test_the_examples_run_in_a_job(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for public, thing in PUBLIC.items():
        monkeypatch.setattr(unhang, public, thing, raising=False)
    for name in ("section", "sections", "heartbeat", "watch_loader"):
        exec(compile(code_of(name), name, "exec"), {"__name__": "__main__"})
