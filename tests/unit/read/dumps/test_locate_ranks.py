"""Equal names in several folders: the content decides, else their order, else it is said that nothing does."""

from __future__ import annotations

import json
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_dumps import BOMBS, as_json, doubling_key, dump, entry, pickled
from test_locate import groups, notes, paths, put

from unhang.read.dumps.identity import identity
from unhang.read.dumps.locate import locate

SEND = entry(1, "nccl:send 1->0", is_p2p=True, process_group=("7", "pp"))


def meshed(rank: int, world: int = 8, tensor: int = 4) -> bytes:
    """A dump of a rank in a mesh of tensor by data parallelism."""
    first = rank // tensor * tensor
    return groups(range(world), range(first, first + tensor), range(rank % tensor, world, tensor))


def configured(**ranks: Sequence[int]) -> dict[str, object]:
    return {name[1:]: {"name": name[1:], "desc": "", "ranks": str(list(r))} for name, r in ranks.items()}


def own_rank(data: bytes) -> int | None:
    return identity(data).rank


@pytest.mark.parametrize(
    "write", [pickled, as_json, lambda made: pickle.dumps(made, 5), lambda made: pickle.dumps(made, 1)]
)
def test_own_rank(write: object) -> None:
    assert callable(write)
    both = configured(_0=range(8), _7=(2, 6))
    assert own_rank(write(dump([entry(0)], pg_config=configured(_0=range(8), _1=(4, 5), _2=(1, 5))))) == 5
    assert own_rank(write(dump([entry(0)], pg_config=both))) is None
    assert own_rank(write(dump([entry(0), SEND], pg_config=both))) == 6
    received = entry(1, "nccl:recv 0<-1", is_p2p=True, process_group=("7", "pp"))
    assert own_rank(write(dump([entry(0), received], pg_config=both))) == 2
    assert own_rank(write(dump([], pg_config=configured(_0=(3,))))) == 3
    assert own_rank(write(dump([], pg_config=json.dumps(both)))) is None
    assert own_rank(write(dump([SEND], pg_config={"7": [2, 6]}))) == 6


def test_own_rank_of_what_contradicts_itself() -> None:
    assert own_rank(pickled(dump([], pg_config=configured(_0=(1, 2), _1=(3, 4))))) is None
    assert own_rank(pickled(dump([SEND], pg_config=configured(_0=(1, 2, 4), _7=(1, 3, 2))))) is None
    far = entry(1, "nccl:send 9->0", process_group=("7", "pp"))
    assert own_rank(pickled(dump([far], pg_config=configured(_7=(1, 3))))) is None


def test_own_rank_of_a_real_gloo_dump(real_dump: bytes) -> None:
    assert own_rank(real_dump) is None


def test_own_rank_of_a_cut_dump() -> None:
    data = meshed(6)
    header = data.index(b"entries")
    assert [own_rank(data[:cut]) for cut in range(header + 10, len(data), 7)] == [6] * len(
        range(header + 10, len(data), 7)
    )
    assert {own_rank(data[:cut]) for cut in range(header)} <= {6, None}


@pytest.mark.parametrize("data", [*BOMBS.values(), doubling_key()], ids=[*BOMBS, "doubling key"])
def test_own_rank_of_an_attack(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_rank(data) is None
    assert list(tmp_path.iterdir()) == []


@given(data=st.data())
def test_damage_never_raises(data: st.DataObject) -> None:
    good = bytearray(meshed(5))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    assert own_rank(bytes(good)) in {None, *range(1000)} or own_rank(bytes(good)) >= 0  # type: ignore[operator]


@pytest.mark.parametrize("optimised", [False, True])
def test_folders_of_nodes_with_local_ranks_by_content(tmp_path: Path, optimised: bool) -> None:
    for rank in range(8):
        data = pickletools.optimize(meshed(rank)) if optimised else meshed(rank)
        put(tmp_path / f"node{(rank // 4 + 1) * 5 % 10}" / f"nccl_trace_rank_{rank % 4}", data)
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {r: f"node{5 - r // 4 * 5}/nccl_trace_rank_{r % 4}" for r in range(8)}
    assert "the ranks are from the content" in notes(found)


def test_a_file_that_says_nothing_lies_beside_its_neighbours(tmp_path: Path) -> None:
    for rank in range(8):
        put(tmp_path / f"node{rank // 4}" / f"nccl_trace_rank_{rank % 4}", b"\x80\x02}" if rank == 6 else meshed(rank))
    assert list(paths(locate([tmp_path]), tmp_path)) == list(range(8))


def test_folders_of_nodes_with_local_ranks_by_order(tmp_path: Path) -> None:
    for node in range(12):
        for local in range(2):
            put(tmp_path / f"node{node}" / f"nccl_trace_rank_{local}", groups(range(24)))
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {r: f"node{r // 2}/nccl_trace_rank_{r % 2}" for r in range(24)}
    assert "ranks taken from folder order (node0, node1, node2, node3, ...)" in notes(found)


def test_host_names_in_file_names_with_local_ranks(tmp_path: Path) -> None:
    for node in range(2):
        for local in range(2):
            put(tmp_path / f"nccl_trace_rank_container-node0{node}_{local}", groups(range(4)))
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {r: f"nccl_trace_rank_container-node0{r // 2}_{r % 2}" for r in range(4)}
    assert "folder order" in notes(found)


def test_what_cannot_be_decided_is_told(tmp_path: Path) -> None:
    for node in range(2):
        for local in range(4 - node):
            put(tmp_path / f"node{node}" / f"nccl_trace_rank_{local}", groups(range(16)), age_s=60 - node)
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {r: f"node0/nccl_trace_rank_{r}" for r in range(4)}
    assert len(found.older) == 3
    assert "names and content do not tell their ranks; those beside" in notes(found)


def test_a_backup_of_one_file_changes_nothing(tmp_path: Path) -> None:
    for rank in range(4):
        put(tmp_path / f"nccl_trace_rank_{rank}", meshed(rank, 4, 2), age_s=60)
    put(tmp_path / "backup" / "nccl_trace_rank_3", meshed(3, 4, 2))
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {r: f"nccl_trace_rank_{r}" for r in range(4)}
    assert len(found.older) == 1


@pytest.mark.parametrize(
    "layout", ["replica_{}/nccl_trace_rank_{}", "replica{}_rank_{}", "x/replica_group_{}/fr/rank_{}"]
)
def test_replicas_are_never_mixed(tmp_path: Path, layout: str) -> None:
    for replica in (10, 9, 2):
        for rank in range(4):
            put(tmp_path / layout.format(replica, rank))
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {r: layout.format(2, r) for r in range(4)}
    assert list(found.replicas) == ["replica 2", "replica 9", "replica 10"]
    assert found.replicas["replica 2"] == found.files
    assert all([f.rank for f in part] == [0, 1, 2, 3] for part in found.replicas.values())
    assert "each is judged on its own, here replica 2; give one folder to choose" in notes(found)


def test_replicas_with_restarts_of_their_own(tmp_path: Path) -> None:
    for replica in range(2):
        for attempt in range(2 + replica):
            put(tmp_path / f"replica_{replica}" / f"attempt_{attempt}" / "rank_0")
    found = locate([tmp_path])
    assert paths(found, tmp_path) == {0: "replica_0/attempt_1/rank_0"}
    assert found.replicas["replica 1"][0].path.endswith("attempt_2/rank_0")


def test_replicas_with_global_ranks_are_one_job(tmp_path: Path) -> None:
    for rank in range(4):
        put(tmp_path / f"replica_{rank // 2}" / f"rank_{rank}")
    found = locate([tmp_path])
    assert [f.rank for f in found.files] == [0, 1, 2, 3]
    assert found.replicas == {}


def test_folders_of_two_jobs_are_never_mixed(tmp_path: Path) -> None:
    for job in ("alpha", "beta"):
        for rank in range(4 if job == "beta" else 3):
            put(tmp_path / job / f"nccl_trace_rank_{rank}", groups(range(4)))
    found = locate([tmp_path])
    assert list(found.replicas) == ["alpha", "beta"]
    assert paths(found, tmp_path) == {r: f"alpha/nccl_trace_rank_{r}" for r in range(3)}
    assert "1 of 2 jobs with equal ranks (alpha, beta)" in notes(found)


FOLDERS = (
    "node0",
    "node1",
    "attempt_0",
    "attempt_2",
    "replica_0",
    "replica_1",
    "iteration_10",
    "20240131",
    "a",
    "rank-1",
)
NAMES = ("rank_0", "rank_1", "rank_1.gz", "rank_1 (1)", "x", "x_7", "trace_1_of_2", "trace_2_of_2", "1", "n0_1")


CONTENTS = {
    "world of 4": groups(range(4)),
    "rank 1 of 4": groups(range(4), [1]),
    "rank 1": groups([1]),
    "rank 0 of 2": groups(range(2), [0]),
}


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    files=st.dictionaries(
        st.tuples(st.lists(st.sampled_from(FOLDERS), max_size=3, unique=True).map(tuple), st.sampled_from(NAMES)),
        st.sampled_from(list(CONTENTS)),
        min_size=1,
        max_size=12,
    )
)
def test_every_dump_is_used_once_or_accounted_for(
    files: dict[tuple[tuple[str, ...], str], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("tree", numbered=True)
    for (folders, name), content in files.items():
        put(top.joinpath(*folders, name), CONTENTS[content])
    found = locate([top])
    for part in (found.files, *found.replicas.values()):
        ranks = [f.rank for f in part]
        assert ranks == sorted(set(ranks))
    used = {f.path for part in (found.files, *found.replicas.values()) for f in part}
    replaced = [f.path for f in found.older]
    assert len(set(replaced)) == len(replaced)
    assert used.isdisjoint(replaced)
    unplaced = sum("tells the rank" in a.reason for a in found.absent)
    assert len(used) + len(replaced) + unplaced == len(files) or len(found.absent) > 16
    assert bool(replaced or found.replicas or unplaced) <= bool(found.absent)
    assert found == locate([top])
