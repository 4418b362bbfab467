"""Dumps are found in any layout, and none is ever taken for another rank's, attempt's or job's."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from made_dumps import as_json, dump, entry, pickled

from unhang.read.dumps import locate as locate_module
from unhang.read.dumps.locate import Located, locate, read_dump

DUMP = pickled(dump([entry(0)]))
JSON = as_json(dump([entry(0)]))
LONG_AGO = 1_700_000_000


def put(path: Path, data: bytes = DUMP, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (LONG_AGO - age_s, LONG_AGO - age_s))
    return path


def groups(*members: Sequence[int]) -> bytes:
    """A dump of a rank that is in these groups."""
    config = {str(i): {"name": str(i), "desc": "", "ranks": str(list(m))} for i, m in enumerate(members)}
    return pickled(dump([entry(0)], pg_config=config))


def paths(found: Located, folder: Path) -> dict[int, str]:
    return {f.rank: str(Path(f.path).relative_to(folder)) for f in found.files}


def notes(found: Located) -> str:
    return "\n".join(f"{a.what}: {a.reason}" for a in found.absent)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12", 12),
        ("comm_trace_rank_3", 3),
        ("hccl_trace_rank_3", 3),
        ("nccl_trace3", 3),
        ("_dump_12", 12),
        ("foo_dump_12.pickle", 12),
        ("nccl_trace_rank_container-node02_5", 5),
        ("nccl_trace_rank_10.0.0.12_5", 5),
        ("nccl_trace_rank_10-0-0-12_5", 5),
        ("trace_rank_3.pkl", 3),
        ("trace_rank_3.json", 3),
        ("rank3.json", 3),
        ("rank_3", 3),
        ("rank-3.pickle", 3),
        ("fr_trace_rank_3.json", 3),
        ("_dump_3.json", 3),
        ("nccl_flightrecorder_44321_rank7", 7),
        ("global_rank_12_local_rank_4", 12),
        ("rank_3_pid_4711.pickle", 3),
        ("rank_3_1718000000.pickle", 3),
        ("trace_20240131_101530_rank_3", 3),
        ("1718000000_rank_3", 3),
        ("trace_5_node02", 5),
        ("replica_1_rank_3", 3),
        ("fr_quorum_4_rank_3", 3),
        ("trace_rank_3_quorum_4", 3),
        ("trace_attempt_1_rank_3", 3),
        ("job_8123_3", 3),
        ("rank_3 (1)", 3),
        ("3", 3),
        ("0007", 7),
    ],
)
def test_the_rank_in_a_name(tmp_path: Path, name: str, rank: int) -> None:
    path = put(tmp_path / name, JSON if name.endswith("json") else DUMP)
    for given in (tmp_path, path, str(path), f"file://{path}"):
        found = locate([given])
        assert [f.rank for f in found.files] == [rank]
        assert found.absent == ()
    assert found.files[0].size == path.stat().st_size
    assert found.files[0].written_ns == LONG_AGO * 10**9
    assert read_dump(found.files[0]) == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_3/dump.pickle", 3),
        ("rank3/nccl_trace_0", 3),
        ("r3-4711/flight.pickle", 3),
        ("attempt_0/3/dump.pickle", 3),
    ],
)
def test_the_rank_in_a_folder(tmp_path: Path, name: str, rank: int) -> None:
    put(tmp_path / name)
    assert [f.rank for f in locate([tmp_path]).files] == [rank]


def test_a_folder_of_one_rank_with_the_dumps_of_all(tmp_path: Path) -> None:
    for rank in range(3):
        put(tmp_path / "rank_0" / "fr" / f"trace_{rank}")
        put(tmp_path / "rank_0" / f"trace_{rank + 3}")
    assert [f.rank for f in locate([tmp_path]).files] == list(range(6))


def test_names_of_one_shape_tell_which_number_is_the_rank(tmp_path: Path) -> None:
    for rank in range(4):
        put(tmp_path / f"nccl_trace_rank_8123_{rank}")
        put(tmp_path / "b" / f"trace_{rank + 4}_gpus_8")
    assert [f.rank for f in locate([tmp_path]).files] == list(range(8))


def test_the_beginning_of_names_as_torch_is_given_it(tmp_path: Path) -> None:
    for rank in range(3):
        put(tmp_path / f"nccl_trace_rank_{rank}")
        put(tmp_path / f"other_rank_{rank}")
    found = locate([str(tmp_path / "nccl_trace_rank_")])
    assert paths(found, tmp_path) == {r: f"nccl_trace_rank_{r}" for r in range(3)}


def test_ranks_are_sorted_and_a_missing_path_costs_only_itself(tmp_path: Path) -> None:
    for rank in (10, 9, 2):
        put(tmp_path / f"nccl_trace_rank_{rank}")
    found = locate([tmp_path / "none", tmp_path, tmp_path / "nccl_trace_rank_9"])
    assert [f.rank for f in found.files] == [2, 9, 10]
    assert "none: No such file" in notes(found)


def test_an_empty_folder(tmp_path: Path) -> None:
    assert locate([tmp_path]) == Located()


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".json.gz", ".pickle.zst"])
def test_compressed_dumps(tmp_path: Path, suffix: str) -> None:
    data = JSON if "json" in suffix else DUMP
    put(tmp_path / f"trace_rank_3{suffix}", zstandard.compress(data) if "zst" in suffix else gzip.compress(data))
    put(tmp_path / f"strange{suffix.replace('.', '_')}_4", gzip.compress(data))
    found = locate([tmp_path])
    assert [f.rank for f in found.files] == [3, 4]
    assert [read_dump(f) for f in found.files] == [data, data]


def test_what_is_no_dump_is_left_to_other_readers(tmp_path: Path) -> None:
    put(tmp_path / "nccl_trace_rank_0")
    others = {
        "README.md": b"rank_3",
        "rank_3.log": b"RuntimeError",
        "rank_4": b"some text of rank 4",
        "stderr_rank_1.txt": b"entries version pg_config",
        "trace_rank_2.json": b'{"schemaVersion": 1, "traceEvents": []}',
        "rank_5.json": b'[{"frames": []}]',
        "model_rank_3.pt": b"PK\x03\x04 entries version",
        "data_3.pkl": b"\x80\x04]\x94.",
        "zeros_7": bytes(5000),
        "core": b"\x7fELF",
        "core.1234": DUMP,
    }
    for name, data in others.items():
        put(tmp_path / name, data)
    for name in (
        ".hidden_rank_1",
        "rank_3.tmp",
        "a/__pycache__/rank_1",
        ".cache/rank_1",
        "x.pipe",
    ):
        put(tmp_path / name)
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {0: "nccl_trace_rank_0"}
    assert {Path(o).name for o in found.others} == set(others)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    for rank in range(20):
        put(tmp_path / f"nccl_trace_rank_{rank}", b"" if rank else DUMP)
    put(tmp_path / "empty.log", b"")
    found = locate([tmp_path])
    assert [f.rank for f in found.files] == [0]
    assert "dump of rank 1: " in notes(found)
    assert "is empty: its process ended before it was written" in notes(found)
    assert len(found.absent) == 17
    assert found.absent[-1].what.startswith("3 more")


def test_links(tmp_path: Path) -> None:
    real = tmp_path / "real"
    put(real / "attempt_1" / "trace_rank_0")
    put(tmp_path / "elsewhere" / "data", DUMP)
    job = tmp_path / "job"
    job.mkdir()
    (job / "a_link").symlink_to(real)
    (job / "nccl_trace_rank_1").symlink_to(tmp_path / "elsewhere" / "data")
    (job / "loop").symlink_to(job)
    (job / "nccl_trace_rank_2").symlink_to(job / "nowhere")
    os.mkfifo(job / "nccl_trace_rank_3")
    found = locate([job])
    assert paths(found, job) == {0: "a_link/attempt_1/trace_rank_0", 1: "nccl_trace_rank_1"}
    assert "nccl_trace_rank_2: No such file or directory; it may be a link that leads nowhere" in notes(found)


def test_a_link_to_the_latest_attempt_does_not_count_twice(tmp_path: Path) -> None:
    for attempt in range(2):
        put(tmp_path / f"attempt_{attempt}" / "trace_rank_0")
    (tmp_path / "a_latest").symlink_to(tmp_path / "attempt_1")
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {0: "attempt_1/trace_rank_0"}
    assert len(found.older) == 1


def test_a_name_without_a_rank(tmp_path: Path) -> None:
    put(tmp_path / "a.pickle", groups(range(4), [2, 3], [0, 2]))
    put(tmp_path / "b.pickle", groups(range(4)))
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {2: "a.pickle"}
    assert "b.pickle: neither its name nor its content tells the rank; name it like trace_rank_3" in notes(found)


@pytest.mark.parametrize("later", ["trace_rank_3.gz", "trace_rank_3 (1)", "trace_rank_3.pickle", "trace_rank_3.bak"])
def test_of_two_files_of_a_rank_the_newer_counts(tmp_path: Path, later: str) -> None:
    data = gzip.compress(DUMP) if later.endswith("gz") else DUMP
    put(tmp_path / "trace_rank_3", age_s=60)
    put(tmp_path / later, data)
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {3: later}
    assert [Path(f.path).name for f in found.older] == ["trace_rank_3"]
    assert "newer or the original" in notes(found)


def test_of_two_equally_old_files_the_original_counts(tmp_path: Path) -> None:
    put(tmp_path / "trace_rank_3 (1)")
    put(tmp_path / "trace_rank_3")
    assert paths(locate([tmp_path]), tmp_path) == {3: "trace_rank_3"}


@pytest.mark.parametrize(
    "folder",
    ["attempt_{}", "restart_{}", "comm_traces/iteration_{}0", "job_quorum_{}", "run/step-{}", "node0/attempt_{}/fr"],
)
def test_the_last_attempt_or_snapshot_counts(tmp_path: Path, folder: str) -> None:
    for number in (1, 2, 11):
        for rank in range(3 if number < 11 else 2):
            put(tmp_path / folder.format(number) / f"rank_{rank}", age_s=60 * number)
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {r: folder.format(11) + f"/rank_{r}" for r in range(2)}
    assert len(found.older) == 6
    assert "6 dumps of an earlier" in notes(found)
    assert "1 ranks have dumps only there" in notes(found)


def test_attempts_count_for_all_nodes_and_before_snapshots(tmp_path: Path) -> None:
    for node in range(2):
        put(tmp_path / f"node{node}" / "attempt_0" / "iteration_90" / f"rank_{node}")
        put(tmp_path / f"node{node}" / "attempt_1" / "iteration_5" / f"rank_{node}")
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {n: f"node{n}/attempt_1/iteration_5/rank_{n}" for n in range(2)}


@pytest.mark.parametrize("names", [("20240131_101530", "20240131_101630"), ("1718000000", "1718000001")])
def test_the_last_moment_counts(tmp_path: Path, names: tuple[str, str]) -> None:
    for moment in names:
        for rank in range(2):
            put(tmp_path / moment / f"rank_{rank}")
    assert paths(locate([tmp_path]), tmp_path) == {r: f"{names[1]}/rank_{r}" for r in range(2)}


def test_each_node_has_moments_of_its_own(tmp_path: Path) -> None:
    for node, moment in ((0, "20240131-101530"), (0, "20240131-101630"), (1, "20240131-101529")):
        put(tmp_path / f"node{node}" / moment / f"rank_{node}")
    assert list(paths(locate([tmp_path]), tmp_path)) == [0, 1]


def test_files_of_each_rank_with_moments_of_their_own(tmp_path: Path) -> None:
    for rank in range(2):
        for second in range(2):
            put(tmp_path / f"trace_rank_{rank}_{1718000000 + 10 * second + rank}")
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {0: "trace_rank_0_1718000010", 1: "trace_rank_1_1718000011"}
    assert len(found.older) == 2


def test_of_many_files_with_names_that_tell_none_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4096):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(b"\x80")

    def opened(path: str) -> bytes:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(locate_module, "_head_of", opened)
    found = locate([tmp_path])
    assert [f.rank for f in found.files] == list(range(4096))
