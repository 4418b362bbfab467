"""The ranks meet, or say who is missing; nobody waits for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from unhang.check.areas import CannotMeet, Member, Participants, meet, member_from


class MemoryStore:
    """What a party needs of a store, for threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> str:
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            total = int(self._values.get(key, "0")) + amount
            self._values[key] = str(total)
            return total


def together(world: int, ranks: list[int], act: Callable[[Participants], Any], limit_s: float = 5.0) -> dict[int, Any]:
    """What `act` returns on each of the ranks, which meet through one store."""
    store, results = MemoryStore(), {}

    def one(rank: int) -> None:
        member = Member(rank, world, host=f"node{rank}", address="127.0.0.1", port=1)
        results[rank] = act(meet(member, limit_s, lambda *_: store))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_everybody_learns_what_everybody_says() -> None:
    seen = together(3, [0, 1, 2], lambda party: (party.present, party.exchange("x", party.member.rank * 10, 5)))
    assert set(seen) == {0, 1, 2}
    assert all(value == ((0, 1, 2), {0: 0, 1: 10, 2: 20}) for value in seen.values())


def test_a_rank_that_never_comes_is_named_by_all() -> None:
    seen = together(3, [0, 2], lambda party: (party.present, dict(party.absent)), limit_s=0.3)
    assert set(seen) == {0, 2}
    assert all(present == (0, 2) for present, _ in seen.values())
    assert all("never came" in absent[1] and list(absent) == [1] for _, absent in seen.values())


def test_a_rank_that_stops_answering_is_left_out_from_then_on() -> None:
    def act(party: Participants) -> Any:
        if party.member.rank == 1:
            return None
        first = party.exchange("first", "a", 0.3)
        return first, party.exchange("second", "b", 5), party.present

    seen = together(3, [0, 1, 2], act)
    assert seen[0] == seen[2] == ({0: "a", 2: "a"}, {0: "b", 2: "b"}, (0, 2))


def test_without_rank_0_the_others_do_not_meet() -> None:
    store = MemoryStore()
    with pytest.raises(CannotMeet, match=r"rank 0 did not answer within 0\.1 s"):
        meet(Member(1, 2, address="a", port=1), 0.1, lambda *_: _Patient(store))


class _Patient(MemoryStore):
    """A store whose rank 0 is silent; the grace is real time, so the answer is made quick."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._values = store._values

    def check(self, keys: list[str]) -> bool:
        return False


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unhang.check.areas._GRACE_S", 1.0)


class _Broken(MemoryStore):
    """A store whose holder has died."""

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Broken pipe\nstack of C++")

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Broken pipe\nstack of C++")


def test_a_store_that_breaks_ends_nothing_but_the_meeting() -> None:
    party = Participants(Member(1, 2), _Broken(), (0, 1))
    assert party.collect("x", 5, 0.1) == {}
    assert party.exchange("y", 5, 0.1) == {1: 5}
    assert party.absent == {0: "stopped answering: the store is gone (Broken pipe)"}
    assert Participants(Member(0, 2), _Broken(), (0, 1)).exchange("y", 5, 0.1) == {0: 5}


def test_a_store_that_nobody_holds_is_told_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        port = taken.getsockname()[1]
        with pytest.raises(CannotMeet, match=r"Connection refused for 0\.2 s"):
            meet(Member(1, 2, address="127.0.0.1", port=port), 0.2)
    with pytest.raises(CannotMeet, match="MASTER_ADDR and MASTER_PORT are not set"):
        meet(Member(1, 2), 0.2)


def test_alone_nothing_waits() -> None:
    party = meet(Member(host="here"), 0.1)
    assert party.is_alone
    assert party.exchange("x", [1], 0.1) == {0: [1]}
    assert party.share("y", 7, 0.1) == 7


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, "", 0)),
        ({"RANK": "3"}, (0, 1, 0, "", 0)),
        ({"RANK": "5", "WORLD_SIZE": "4"}, (0, 1, 0, "", 0)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
            (3, 4, 1, "h", 29500),
        ),
        (
            {"SLURM_PROCID": "2", "SLURM_NTASKS": "8", "SLURM_LOCALID": "2", "SLURM_JOB_NODELIST": "gpu[03-07,9]"}
            | {"SLURM_JOB_ID": "123456"},
            (2, 8, 2, "gpu03", 23456),
        ),
    ],
)
def test_who_this_process_is(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    member = member_from(environ)
    assert (member.rank, member.world_size, member.local_rank, member.address, member.port) == expected
