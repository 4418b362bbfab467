"""Weight sync between threads of one process: the learner in the main thread, generators beside it."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from unhang.errors import WeightSyncFailed
from unhang.inside.guards import receiving as weight_store
from unhang.inside.guards.receiving import Line, Order, Status, StoreLost
from unhang.inside.guards.weights import GroupInUse, Turn, WeightSync

Store = Any


@pytest.fixture
def store() -> Store:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Generator:
    """A generator in a thread of its own."""

    def __init__(self, store: Store, rank: int = 1, **options: Any) -> None:
        self.sync = WeightSync(0, (1,), rank=rank, store=store, **{"limit_s": 5, **options})
        self.taken: list[tuple[int, dict[str, Any]]] = []
        self.error: Exception | None = None
        self._ends = time.monotonic() + 15
        self.thread = threading.Thread(target=self._run, name="generator", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.sync.is_over and time.monotonic() < self._ends:
                weights = self.sync.take()
                if weights is not None:
                    self.taken.append((self.sync.version, weights))
                time.sleep(0.002)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def ended(self) -> Generator:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self


def learner(store: Store, **options: Any) -> WeightSync:
    return WeightSync(0, (1,), rank=0, store=store, **{"limit_s": 5, **options})


def test_a_module_in_two_versions(store: Store) -> None:
    sync, generator = learner(store), Generator(store)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert sync.publish(model) == 1
    with torch.no_grad():
        model[0].weight += 1
    assert sync.publish(model, version=7) == 7
    until = time.monotonic() + 5
    while sync.versions() != {1: 7} and time.monotonic() < until:
        time.sleep(0.005)
    sync.close()
    versions = [version for version, _ in generator.ended().taken]
    assert versions in ([1, 7], [7])
    weights = generator.taken[-1][1]
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert list(weights) == list(model.state_dict())


def test_tensors_larger_than_a_part_and_of_many_kinds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_store, "CHUNK_BYTES", 64)
    sync, generator = learner(store), Generator(store)
    sent = {
        "long": torch.randn(101),
        "turned": torch.randn(4, 6).t(),
        "half": torch.randn(7).to(torch.bfloat16),
        "number": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
    }
    sync.publish(sent)
    while not generator.taken and generator.thread.is_alive():
        time.sleep(0.005)
    sync.close()
    ((version, got),) = generator.ended().taken
    assert version == 1
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor), name


def test_nothing_is_left_in_the_store(store: Store) -> None:
    sync, generator = learner(store), Generator(store)
    sync.publish({"w": torch.ones(3)})
    before = store.num_keys()
    for _ in range(5):
        sync.publish({"w": torch.ones(3)})
    assert store.num_keys() == before
    sync.close()
    generator.ended()


def test_a_generator_that_never_came(store: Store) -> None:
    sync = learner(store, limit_s=0.2)
    with pytest.raises(WeightSyncFailed, match=r"generator 1 \(1 never came\) did not pause within 0.2 s"):
        sync.publish({"w": torch.ones(1)})
    assert sync.version == 0


def test_a_generator_that_has_left_is_not_waited_for(store: Store) -> None:
    sync = learner(store, limit_s=2)
    gone = WeightSync(0, (1,), rank=1, store=store)
    gone.close()
    assert sync.publish({"w": torch.ones(1)}) == 1
    assert gone.take() is None


def test_the_generators_go_on_after_an_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sync, generator = learner(store), Generator(store)
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt), sync.paused():
            raise KeyboardInterrupt
        while sync._line.status(1) != Status(number, "running") and generator.thread.is_alive():
            time.sleep(0.005)
    assert sync.publish({"w": torch.ones(1)}) == 1
    while not generator.taken and generator.thread.is_alive():
        time.sleep(0.005)
    sync.close()
    assert [version for version, _ in generator.ended().taken] == [1]
    assert "goes on with version 0: KeyboardInterrupt" in capsys.readouterr().err


def test_a_learner_that_falls_silent_in_a_pause(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sync, generator = learner(store, limit_s=0.3), Generator(store, limit_s=0.3)
    with pytest.raises(WeightSyncFailed, match="the generators have gone on: generator 1 had no sign"), sync.paused():
        time.sleep(0.8)
    assert "no sign from the learner for 0.3 s in a pause; it goes on with version 0" in capsys.readouterr().err
    assert sync.publish({"w": torch.ones(1)}) == 1
    sync.close()
    generator.ended()


def test_a_generator_that_stops_without_a_learner(store: Store) -> None:
    sync, generator = learner(store, limit_s=0.3), Generator(store, limit_s=0.3, on_lost="stop")
    with pytest.raises(WeightSyncFailed), sync.paused():
        time.sleep(0.8)
    assert "generator 1: no sign from the learner" in str(generator.ended().error)


def test_a_learner_that_stops_the_generators(store: Store) -> None:
    sync, generator = learner(store, on_error="stop"), Generator(store)
    with pytest.raises(ZeroDivisionError), sync.paused():
        1 / 0  # noqa: B018
    assert str(generator.ended().error) == "the learner stopped generator 1: ZeroDivisionError: division by zero"


def test_a_restarted_learner_goes_on_counting(store: Store) -> None:
    generator = Generator(store)
    assert learner(store).publish({"w": torch.ones(1)}) == 1
    again = learner(store)
    assert again.version == 1
    assert again.publish({"w": torch.ones(1)}) == 2
    again.close()
    generator.ended()


def test_weights_that_do_not_arrive_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, generator = learner(store), Generator(store)
    whole = weight_store.write

    def spoiled(line: Line, number: int, *more: Any) -> list[str]:
        keys = whole(line, number, *more)
        line.put(keys[0], b"\1" * len(line.get(keys[0])))
        return keys

    monkeypatch.setattr(weight_store, "write", spoiled)
    with pytest.raises(
        WeightSyncFailed, match="generator 1 could not take the weights: ValueError: what arrived is not"
    ):
        sync.publish({"w": torch.ones(3)})
    sync.close()
    assert generator.ended().taken == []


def test_what_makes_no_sense(store: Store) -> None:
    with pytest.raises(ValueError, match="2 is to be either the learner 0 or one of"):
        WeightSync(0, (1,), rank=2, store=store)
    with pytest.raises(ValueError, match="0 is to be either"):
        WeightSync(0, (0, 1), rank=0, store=store)
    sync, other = learner(store), WeightSync(0, (1,), rank=1, store=store)
    with pytest.raises(WeightSyncFailed, match="only generators take"):
        sync.take()
    with pytest.raises(WeightSyncFailed, match="only the learner 0 pauses"):
        other.publish({"w": torch.ones(1)})
    generator = Generator(store)
    sync.publish({"w": torch.ones(1)})
    with pytest.raises(ValueError, match="version 1 does not follow 1"):
        sync.publish({"w": torch.ones(1)}, version=1)
    sync.close()
    generator.ended()


def test_the_order_is_changed_only_by_who_knows_it(store: Store) -> None:
    line = Line(store, "x")
    first, second = Order(1, "pause"), Order(1, "run")
    assert line.order() == Order()
    assert line.change(Order(), first)
    assert not line.change(Order(), second)
    assert line.change(first, second)
    assert not line.change(first, Order(2))
    assert line.order() == second
    assert line.status(4) == Status()
    with pytest.raises(LookupError, match="taken back"):
        line.get("nothing")


def test_a_store_whose_host_has_ended() -> None:
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line = Line(dist.TCPStore("127.0.0.1", host.port, is_master=False, wait_for_workers=False), "x")
    del host
    with pytest.raises(StoreLost):
        line.order()


def test_a_turn_is_for_one_thread_and_may_be_taken_again_within() -> None:
    turn = Turn("weights")
    refused: list[str] = []

    def second() -> None:
        try:
            with turn.taken("train step"):
                pass
        except GroupInUse as error:
            refused.append(str(error))

    with turn.taken("weight sync"), turn.taken("publish"):
        assert turn.is_mine()
        thread = threading.Thread(target=second, name="train loop")
        thread.start()
        thread.join(5)
    assert not turn.is_mine()
    assert len(refused) == 1
    assert refused[0].startswith(
        "thread 'train loop' wants to begin 'train step' with 'weights', which thread 'MainThread' uses for 'weight sync', since"
    )
    second()
    assert len(refused) == 1


def test_a_turn_can_be_waited_for() -> None:
    turn, inside = Turn("weights"), threading.Event()

    def first() -> None:
        with turn.taken("train step"):
            inside.set()
            time.sleep(0.1)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(5)
    with turn.taken("weight sync", wait_s=5):
        assert turn.is_mine()
    thread.join(5)


def test_the_last_weights_are_taken_though_the_learner_has_closed_already(store: Store) -> None:
    sync, other = learner(store), WeightSync(0, (1,), rank=1, store=store, limit_s=5)
    thread = threading.Thread(target=lambda: (sync.publish({"w": torch.ones(2)}), sync.close()))
    receiver = other._receiver
    assert receiver is not None
    # The generator sleeps from the moment at which it has the weights until the learner has closed.
    say = receiver._say

    def slow(order: Order, state: str, text: str = "") -> None:
        say(order, state, text)
        if state == "has":
            thread.join(5)

    receiver._say = slow  # type: ignore[method-assign]
    thread.start()
    weights = None
    until = time.monotonic() + 10
    while weights is None and time.monotonic() < until:
        weights = other.take()
    assert weights is not None
    assert weights["w"].tolist() == [1.0, 1.0]
    assert (other.version, other.is_over) == (1, True)


def test_weights_of_a_failed_publish_are_never_used(store: Store) -> None:
    # The next publish has the same version. It does not wait for this generator, which may still see it in time, or not.
    sync, generator = learner(store), Generator(store)

    def fail() -> None:
        with sync.paused():
            sync.publish({"w": torch.ones(1)})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    sync.drop(1)
    assert sync.publish({"w": torch.zeros(1)}) == 1
    sync.close()
    taken = [(version, weights["w"].tolist()) for version, weights in generator.ended().taken]
    assert taken in ([], [(1, [0.0])])
    assert generator.sync.version == len(taken)


class TakenBack:
    """A store in which a key is gone right after the first question about it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        def ask(key: Any, *arguments: Any) -> Any:
            answer = getattr(self._store, name)(key, *arguments)
            self._store.delete_key(key if isinstance(key, str) else key[0])
            return answer

        return ask


@pytest.mark.parametrize("kind", ["tcp", "file", "hash"])
def test_what_is_taken_back_meanwhile_is_not_waited_for(kind: str, store: Store, tmp_path: Path) -> None:
    line = Line({"tcp": store, "file": dist.FileStore(str(tmp_path / "s"), 1), "hash": dist.HashStore()}[kind], "w")
    store = line._store
    store.set_timeout(timedelta(seconds=1))  # of a question that waits
    for part in (b"\x00\xff" * 1000, b"{}"):
        line.put("part", part)
        line._store = TakenBack(store)
        assert line.get("part") == part
        with pytest.raises(LookupError):
            line.get("part")
        line._store = store


def test_one_that_waited_for_another_in_vain_is_not_accused(store: Store) -> None:
    sync = WeightSync(0, (1, 2), rank=0, store=store, limit_s=5)
    number, line = sync._order.number, sync._line
    line.put_status(1, Status(number, "paused"))
    line.put_status(2, Status(number, "failed", text="TimeoutError: w1 did not get through within 2 s", came=True))
    assert sync._laggards() == "; generator 1 did not come to receive"
    line.put_status(1, Status(number, "failed", text="ValueError: it was given no group"))
    assert sync._laggards() == "; generator 1 could not take the weights: ValueError: it was given no group"
    line.put_status(1, Status(number, "receiving"))
    assert sync._laggards() == "; generators 1, 2 did not receive all"
