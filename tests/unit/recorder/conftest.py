from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short path: a unix socket's name has at most 107 bytes, and pytest's own folders are long."""
    folder = Path(tempfile.mkdtemp(prefix="uh-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
