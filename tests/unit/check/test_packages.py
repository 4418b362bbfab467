"""Versions that are read from files, without importing or starting anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slowness import slowness
from unhang.check.versions import driver, nccl_files, parse_torch, versions
from unhang.model.evidence import as_numbers


def test_version_file_of_torch() -> None:
    text = (
        "__version__ = '2.7.1+cu126'\ncuda: Optional[str] = '12.6'\ngit_version = 'e2d14'\nhip: Optional[str] = None\n"
    )
    assert parse_torch(text) == {"torch": "2.7.1+cu126", "torch CUDA": "12.6", "torch revision": "e2d14"}
    assert parse_torch("__version__ = compute()\ncuda = 12\n") == {"torch CUDA": "12"}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Thu Feb 22 01:21:18 UTC 2024\n", "535.161.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@h)\n", "580.95.05"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  570.86  x\nGCC version:  gcc version 12.2.0\n", "570.86"),
        ("something else\n", None),
    ],
)
def test_version_of_the_driver(tmp_path: Path, line: str, version: str | None) -> None:
    (tmp_path / "version").write_text(line)
    assert driver(tmp_path / "version") == version
    assert driver(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.7.0+cu126", (2, 7, 0)), ("v1", (1,)), ("2.8.0a0+git12", (2, 8, 0)), ("none", ()), (None, ())],
)
def test_versions_to_compare(text: str | None, numbers: tuple[int, ...]) -> None:
    assert as_numbers(text) == numbers


def test_libraries_that_variables_bring_in(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2.27.3").write_bytes(b"x")
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.27.3")
    (tmp_path / "libnccl-net-ofi.so").write_bytes(b"xy")
    path = {"LD_LIBRARY_PATH": f"/nowhere::{tmp_path}"}
    assert nccl_files({})["NCCL on LD_LIBRARY_PATH"] is None
    assert nccl_files(path)["NCCL on LD_LIBRARY_PATH"] == "2.27.3"
    assert nccl_files(path)["NCCL network plugin"] is None
    assert nccl_files({**path, "NCCL_NET_PLUGIN": "ofi"})["NCCL network plugin"] == "libnccl-net-ofi.so, 2 bytes"
    assert nccl_files({**path, "NCCL_NET_PLUGIN": "none"})["NCCL network plugin"] is None
    preloaded = {"LD_PRELOAD": f"libx.so {tmp_path}/libnccl.so.2"}
    assert nccl_files(preloaded)["preloaded NCCL"] == "2.27.3"
    assert "No such file" in str(nccl_files({"LD_PRELOAD": "/gone/libnccl.so.2"})["preloaded NCCL"])


def test_nothing_is_imported() -> None:
    code = "import sys; from unhang.check.versions import versions; v = versions({}); print(v['torch'], 'torch' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30 * slowness(), check=True
    ).stdout
    assert told.split()[1] == "False"
    assert told.split()[0] == versions({})["torch"]
