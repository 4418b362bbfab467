"""The examples in the docstrings run."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch.distributed as dist

import unhang

_BLOCK = re.compile(r"Example:\n\s*```python\n(.*?)```", re.S)


def _example(documented: object) -> str:
    block = _BLOCK.search(documented.__doc__ or "")
    assert block is not None
    return textwrap.dedent(" " * 8 + block[1].lstrip())


def test_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    exec(_example(unhang.process_group), {})
    assert capsys.readouterr().out == "rank 0 of 1 trains on cpu\n"
    assert not dist.is_initialized()


def test_record(capsys: pytest.CaptureFixture[str]) -> None:
    exec(_example(unhang.record), {})
    assert capsys.readouterr().out == "42\n"
