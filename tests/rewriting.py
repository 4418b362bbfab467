"""Rewrites the assertions of new tests once, on all cores: each worker of pytest would do it for itself, in thirteen seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_once(config: pytest.Config) -> None:
    """Writes what the workers would look for in vain. With a pytest that does it otherwise, they help themselves as before."""
    if sys.dont_write_bytecode:
        return
    tests, cores = sorted(Path(__file__).parent.rglob("test_*.py")), len(os.sched_getaffinity(0))
    children = []
    for share in (tests[i::cores] for i in range(cores)):
        if child := os.fork():
            children.append(child)
            continue
        with suppress(Exception):
            _rewrite(share, config)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def _rewrite(paths: Sequence[Path], config: pytest.Config) -> None:
    state = config.stash[rewrite.assertstate_key]
    for path in paths:
        folder = rewrite.get_cache_dir(path)
        kept = folder / f"{path.stem}{rewrite.PYC_TAIL}"
        if not kept.exists() and rewrite.try_makedirs(folder):
            found, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, found, kept)
