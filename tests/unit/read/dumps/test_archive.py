"""Archives are read as data: no member's name touches the disk, and no content may grow without limit."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import zstandard
from made_dumps import dump, entry, pickled
from test_locate import DUMP, JSON, LONG_AGO, notes, put

from unhang.errors import UnreadableInput
from unhang.read.dumps import DumpFile, archive
from unhang.read.dumps.archive import decompress
from unhang.read.dumps.locate import locate, read_dump

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def tarred(files: dict[str, bytes], **changes: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), LONG_AGO
            tar.addfile(info, io.BytesIO(data))
        for info in changes.values():
            tar.addfile(info)
    return out.getvalue()


def distinct(rank: int) -> bytes:
    return pickled(dump([entry(rank)]))


BUNDLE = {
    **{f"job/node{r // 2}/nccl_trace_rank_{r}": distinct(r) for r in range(4)},
    "job/strange_4": distinct(4),
    "job/trace_rank_5.pickle.gz": gzip.compress(distinct(5)),
    "job/trace_rank_6.json": JSON,
    "job/train.log": b"step 1",
    "job/rank_9": b"no dump",
    "job/.hidden/nccl_trace_rank_0": DUMP,
}


@pytest.mark.parametrize("suffix", [*(f".tar{c}" for c in COMPRESS), ".tgz", ".tzst", ".zip"])
def test_bundles(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    path = tmp_path / f"dumps{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, data in BUNDLE.items():
                bundle.writestr(name, data)
    else:
        kind = {".tgz": ".gz", ".tzst": ".zst"}.get(suffix, suffix.removeprefix(".tar"))
        path.write_bytes(COMPRESS[kind](tarred(BUNDLE)))
    found = locate([path])
    assert [(f.rank, f.path) for f in found.files] == [(r, str(path)) for r in range(7)]
    assert [read_dump(f) for f in found.files] == [*(distinct(r) for r in range(6)), JSON]
    assert f"{path}: job/train.log, job/rank_9" in notes(found)
    assert "not read, since no dump has such a name; unpack it" in notes(found)
    assert list(scratch.iterdir()) == []
    if suffix != ".zip":
        assert {f.written_ns for f in found.files} == {LONG_AGO * 10**9}
    with pytest.raises(UnreadableInput, match="holds no such dump"):
        read_dump(DumpFile(7, str(path), "job/nccl_trace_rank_7"))


def test_one_bundle_per_node_and_loose_files(tmp_path: Path) -> None:
    for node in range(2):
        names = {f"nccl_trace_rank_{node * 2 + i}": DUMP for i in range(2)}
        put(tmp_path / f"node{node}.tar.gz", gzip.compress(tarred(names)))
    put(tmp_path / "nccl_trace_rank_4")
    assert [f.rank for f in locate([tmp_path]).files] == list(range(5))


def test_attempts_within_a_bundle(tmp_path: Path) -> None:
    put(tmp_path / "a.tar", tarred({f"attempt_{a}/rank_{r}": distinct(a) for a in range(2) for r in range(2)}))
    found = locate([tmp_path])
    assert [f.member for f in found.files] == ["attempt_1/rank_0", "attempt_1/rank_1"]
    assert len(found.older) == 2


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
def test_hostile_members_are_ignored(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    link = tarfile.TarInfo("nccl_trace_rank_5")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    hard = tarfile.TarInfo("nccl_trace_rank_6")
    hard.type, hard.linkname = tarfile.LNKTYPE, "../nccl_trace_rank_0"
    device = tarfile.TarInfo("nccl_trace_rank_7")
    device.type = tarfile.CHRTYPE
    files = {
        "nccl_trace_rank_0": DUMP,
        "../nccl_trace_rank_1": DUMP,
        "/nccl_trace_rank_2": DUMP,
        "a/../../rank_3": DUMP,
    }
    put(tmp_path / "in" / "a.tar", compress(tarred(files, link=link, hard=hard, device=device)))
    found = locate([tmp_path])
    assert [(f.rank, f.member) for f in found.files] == [(0, "nccl_trace_rank_0")]
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "a.tar"]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2", ".zip"])
def test_damaged_archives(tmp_path: Path, suffix: str) -> None:
    data = tarred({f"nccl_trace_rank_{r}": os.urandom(30_000) for r in range(20)})
    packed = COMPRESS.get(suffix.removeprefix(".tar"), gzip.compress)(data)
    for cut in (0, 3, 100, len(packed) // 2):
        path = put(tmp_path / f"{cut}{suffix}", packed[:cut])
        found = locate([path])
        assert found.absent or not found.files
        for file in found.files:
            assert read_dump(file) == data[(at := 512 + file.rank * 30_720) : at + 30_000]
        if cut == len(packed) // 2 and suffix in (".tar", ".tar.gz", ".tar.zst"):
            assert 5 < len(found.files) < 15
            assert "dumps could be read (" in notes(found)
    put(tmp_path / "nccl_trace_rank_99")
    assert 99 in {f.rank for f in locate([tmp_path]).files}


def test_a_tar_whose_headers_point_backwards_ends(tmp_path: Path) -> None:
    data = bytearray(tarred({"nccl_trace_rank_0": DUMP, "nccl_trace_rank_1": DUMP}))
    size = (-len(DUMP) - 512).to_bytes(12, "big", signed=True)
    data[124:136] = size
    data[148:156] = b" " * 8
    data[148:156] = f"{sum(data[:512]):06o}\0 ".encode()
    start = time.monotonic()
    for suffix, packed in ((".tar", bytes(data)), (".tar.gz", gzip.compress(bytes(data)))):
        found = locate([put(tmp_path / f"a{suffix}", packed)])
        assert found.files == ()
    assert time.monotonic() - start < 10


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BOMB_BYTES", 16 << 20)
    zeros = bytes(1 << 20)
    packed = gzip.compress(zeros * 20, 9)
    for name in ("trace_rank_0.gz", "trace_rank_1.zst"):
        put(tmp_path / name, packed if "gz" in name else zstandard.compress(zeros * 20))
    for file in locate([tmp_path / "trace_rank_0.gz", tmp_path / "trace_rank_1.zst"]).files:
        with pytest.raises(UnreadableInput, match="it is an attack"):
            read_dump(file)
        with pytest.raises(UnreadableInput, match="holds more than 1 MiB"):
            read_dump(file, 1 << 20)
    huge = tarfile.TarInfo("nccl_trace_rank_0")
    huge.size = 20 << 20
    put(tmp_path / "a.tar.gz", gzip.compress(huge.tobuf() + zeros * 20, 9))
    found = locate([tmp_path / "a.tar.gz"])
    assert found.files == ()
    assert "it is an attack" in notes(found)


def test_limits_hold_for_plain_files_and_members(tmp_path: Path) -> None:
    put(tmp_path / "nccl_trace_rank_0", DUMP + bytes(1 << 20))
    put(tmp_path / "a.tar", tarred({"nccl_trace_rank_1": DUMP + bytes(1 << 20)}))
    for file in locate([tmp_path]).files:
        with pytest.raises(UnreadableInput, match="1 MiB"):
            read_dump(file, 1 << 20)


@pytest.mark.parametrize("compress", list(COMPRESS.values())[1:], ids=list(COMPRESS)[1:])
def test_cut_and_damaged_compressed_files(compress: Callable[[bytes], bytes]) -> None:
    data = os.urandom(5000)
    packed = compress(data)
    for cut in range(9, len(packed) - 1, 97):
        with pytest.raises(UnreadableInput, match=r"^x: it cannot be decompressed|^x: it is cut"):
            decompress(packed[:cut], "x")
    bad = bytearray(packed)
    bad[len(bad) // 2] ^= 255
    try:
        assert decompress(bytes(bad), "x") != data
    except UnreadableInput:
        pass


def test_several_streams_in_one_file() -> None:
    for compress in list(COMPRESS.values())[1:]:
        assert decompress(compress(b"one") + compress(b"two"), "x") == b"onetwo"


def test_zstandard_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "nccl_trace_rank_0")
    put(tmp_path / "nccl_trace_rank_1.zst", zstandard.compress(DUMP))
    put(tmp_path / "a.tar.zst", zstandard.compress(tarred({"nccl_trace_rank_2": DUMP})))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    found = locate([tmp_path])
    assert [f.rank for f in found.files] == [0, 1]
    assert "a.tar.zst: reading .zst files needs zstandard; pip install 'unhang[analyze]'" in notes(found)
    with pytest.raises(UnreadableInput, match="pip install"):
        read_dump(found.files[1])


def test_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    for rank in range(3):
        store.pipe(f"/job/node{rank}/nccl_trace_rank_{rank}", distinct(rank))
    store.pipe("/job/trace_rank_3.json.gz", gzip.compress(JSON))
    store.pipe("/job/strange_4", distinct(4))
    store.pipe("/job/train.log", b"step")
    store.pipe("/job/a.tar.gz", gzip.compress(tarred({"nccl_trace_rank_5": distinct(5)})))
    store.pipe("/job/a.tar", tarred({"nccl_trace_rank_6": distinct(6)}))
    try:
        found = locate(["memory://job"])
        assert [f.rank for f in found.files] == list(range(7))
        assert found.files[1].path == "memory:///job/node1/nccl_trace_rank_1"
        assert found.files[1].size == len(distinct(1))
        assert abs(found.files[1].written_ns - time.time_ns()) < 3600 * 10**9
        assert [read_dump(f) for f in found.files] == [
            *(distinct(r) for r in range(3)),
            JSON,
            *map(distinct, (4, 5, 6)),
        ]
        assert found.others == ("memory:///job/train.log",)
        assert locate(["memory://job/strange_4"]).files[0].rank == 4
        assert "memory://none: " in notes(locate(["memory://none"]))
        store.rm("/job/node1/nccl_trace_rank_1")
        with pytest.raises(UnreadableInput, match="nccl_trace_rank_1: it cannot be read"):
            read_dump(found.files[1])
    finally:
        store.rm("/job", recursive=True)
    assert "nosuch://x: " in notes(locate(["nosuch://x"]))
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert "memory://job: reading URLs needs fsspec; pip install 'unhang[analyze]'" in notes(locate(["memory://job"]))


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    put(tmp_path / "a.tar", tarred({"nccl_trace_rank_1": DUMP}))
    put(tmp_path / "nccl_trace_rank_0")
    files = locate([tmp_path]).files
    (tmp_path / "a.tar").unlink()
    (tmp_path / "nccl_trace_rank_0").unlink()
    for file in files:
        with pytest.raises(UnreadableInput, match="check the path"):
            read_dump(file)
