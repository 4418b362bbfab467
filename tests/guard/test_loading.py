"""Loaders: forecasts from numbers and from real loaders, and workers that die or stand still."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from unhang.inside.guards import forecast as check
from unhang.inside.guards.forecast import _Machine, check_loader
from unhang.inside.guards.loader import WatchedLoader, ended, watch_loader
from unhang.inside.guards.section import section
from unhang.inside.guards.weighing import Measured, measure, start_method


class Images(Dataset[dict[str, torch.Tensor]]):
    """Five tensors a sample, of 1200 bytes together."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {f"view {n}": torch.zeros(60) for n in range(5)}


class Tokens(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.zeros(8, 10)


class Faulty(Dataset[int]):
    """The fourth sample brings `fault` about, in whichever process takes it."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            if self.fault == "stuck":
                time.sleep(600)
            elif self.fault == "exit":
                os._exit(0)
            elif self.fault in ("slow", "slower"):
                time.sleep(1 if self.fault == "slow" else 5)
            else:
                os.kill(os.getpid(), getattr(signal, self.fault))
        return index


class FaultyLater(Faulty):
    """The same, once the body of the loop has been reached: before that the loader's guard would tell it."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.in_body = multiprocessing.Event()

    def __getitem__(self, index: int) -> int:
        if index == 3:
            assert self.in_body.wait(60)
        return super().__getitem__(index)


class Pickled(Dataset[int]):
    def __init__(self, state: Any) -> None:
        self.state = state

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def __getstate__(self) -> Any:
        return self.state() if callable(self.state) else self.__dict__


def loader(data: Any, **more: Any) -> Any:
    return DataLoader(data, **{"batch_size": 4, "num_workers": 2, **more})


def test_a_batch_is_measured_in_another_process() -> None:
    touched: list[int] = []

    class Noted(Images):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            touched.append(index)
            return super().__getitem__(index)

    found = measure(loader(Noted(), batch_size=16), 30)
    assert (found.tensors, found.batch_bytes, found.problem) == (5, 5 * 60 * 4 * 16, "")
    assert touched == []


def test_ragged_batches_grow_with_their_size() -> None:
    found = measure(loader(Images(), batch_size=16, collate_fn=list), 30)
    assert (found.tensors, found.batch_bytes) == (5 * 16, 5 * 60 * 4 * 16)


def test_iterable_and_unbatched_datasets_are_measured() -> None:
    assert measure(loader(Tokens()), 30).batch_bytes == 4 * 10 * 4
    assert measure(loader(Images(), batch_size=None), 30).batch_bytes == 5 * 60 * 4


def test_a_dataset_that_fails_or_stands_still_has_no_forecast(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(Images):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            raise KeyError("gone")

    assert check_loader(loader(Broken())) == []
    assert "[loader] a batch could not be measured, so there is no forecast: KeyError: 'gone'" in capfd.readouterr().err
    stuck = measure(loader(Faulty("stuck"), sampler=[3, 3, 3, 3]), 0.3)
    assert stuck.problem == "it took more than 0.3 s, or its process ended"
    dead = measure(loader(Faulty("SIGKILL"), sampler=[3, 3, 3, 3]), 30)
    assert dead.tensors is None


def test_a_sound_loader_has_no_findings(capfd: pytest.CaptureFixture[str]) -> None:
    assert check_loader(loader(Images(), timeout=20), limit_s=60) == []
    assert check_loader(loader(Images(), num_workers=0)) == []
    assert check_loader([1, 2, 3]) == []
    assert capfd.readouterr().err == ""


def test_the_loader_must_speak_before_the_section(capfd: pytest.CaptureFixture[str]) -> None:
    with section("step", limit_s=60):
        (never,) = check_loader(loader(Images()))
        (late,) = check_loader(loader(Images(), timeout=90))
        assert check_loader(loader(Images(), timeout=30)) == []
    assert never.what == "timeout"
    assert (
        str(never) == "timeout: loader.timeout is 0, so a stuck worker is waited for until the section's limit of 60 s "
        "is over; set DataLoader(timeout=30)"
    )
    assert (
        late.text
        == "loader.timeout of 90 s is not below the section's limit of 60 s, which speaks first and knows less"
    )
    assert f"[loader] {late}" in capfd.readouterr().err


def test_each_limit_is_compared_with_the_one_around_it() -> None:
    machine = _Machine(limits=(("the section's limit", 700), ("the process group's timeout", 600), ("the job", 500)))
    found = list(check._timeouts(60, machine))
    assert [finding.text.split(" s is")[0] for finding in found] == [
        "the section's limit of 700",
        "the process group's timeout of 600",
    ]


def test_the_rest_of_a_slurm_job_is_a_limit() -> None:
    limits = dict(check._limits(10, {"SLURM_JOB_END_TIME": str(int(time.time()) + 300)}))
    assert limits["the section's limit"] == 10
    assert 290 < limits["the rest of the Slurm job's time"] <= 300
    assert dict(check._limits(None, {"SLURM_JOB_END_TIME": "soon"})) == {}


def test_descriptors_are_forecast_from_workers_batches_and_tensors() -> None:
    weight = Measured(tensors=40, batch_bytes=1000)
    many = loader(Images(), prefetch_factor=8)
    (found,) = check._descriptors(many, weight, _Machine(100, 1024))
    assert (
        found.text == "2 workers x 8 batches x 40 tensors may need 730 file descriptors besides the 100 that are open; "
        "the limit is 1024"
    )
    assert list(check._descriptors(many, weight, _Machine(100, 1024, sharing="file_system"))) == []
    assert list(check._descriptors(many, weight, _Machine(100, 4096))) == []
    assert list(check._descriptors(many, Measured(), _Machine(100, 64))) == []


def test_the_forecast_of_descriptors_is_not_below_what_a_loader_takes() -> None:
    before, _ = check.descriptors()
    images = loader(Images(), prefetch_factor=4)
    iterator = iter(images)
    kept = next(iterator)
    time.sleep(0.5)
    most = check.descriptors()[0]
    assert before is not None
    assert most is not None
    forecast = 2 + 4 * 2 + 5 * (2 * 4 + 2)
    assert most - before <= forecast
    del kept, iterator


def test_shared_memory_is_forecast_for_all_ranks_of_the_machine() -> None:
    weight = Measured(tensors=1, batch_bytes=10_000_000)
    (found,) = check._shared_memory(loader(Images()), weight, _Machine(shm_free=64 << 20, local_ranks=4))
    assert found.what == "shared-memory"
    assert "batches of 10 MB x 2 workers x 2 prefetched x 4 ranks need up to 240 MB of /dev/shm; 67.1 MB are free" in (
        found.text
    )
    assert list(check._shared_memory(loader(Images()), weight, _Machine(shm_free=1 << 30, local_ranks=4))) == []


def test_spawned_workers_are_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_LARGE_START", 1 << 20)
    spawned = loader(Pickled(b"x" * 3_000_000), multiprocessing_context="spawn")
    found = {finding.what: finding for finding in check_loader(spawned)}
    assert list(found) == ["start", "persistent-workers"]
    assert "spawn pickles the dataset into each of 2 workers, one after the other: 3 MB and 0." in found["start"].text
    assert "at the beginning of every epoch" in found["start"].text
    small = loader(Pickled(b"x"), multiprocessing_context="spawn", persistent_workers=True)
    assert check_loader(small) == []


def test_a_pickling_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MEASURE_LIMIT_S", 0.5)

    def slow_state() -> Any:
        time.sleep(600)

    (found,) = check_loader(
        loader(Pickled(slow_state), multiprocessing_context="spawn", persistent_workers=True, timeout=5)
    )
    assert found.what == "start"
    assert "more than 0.4 s each, once" in found.text


def test_what_cannot_be_pickled_is_named() -> None:
    (found,) = check_loader(loader(Pickled(threading.Lock()), multiprocessing_context="spawn"))
    assert (found.what, "cannot pickle '_thread.lock' object" in found.text) == ("unpicklable", True)


def test_tensors_and_locks_for_workers_are_no_obstacle() -> None:
    import multiprocessing

    state = [multiprocessing.get_context("spawn").Lock(), torch.zeros(1000)]
    found = measure(loader(Pickled(state), multiprocessing_context="spawn"), 30)
    assert (found.pickle_problem, found.is_pickled, found.pickled_tensor_bytes) == ("", True, 4000)


def test_the_start_method_is_asked_for_without_fixing_it() -> None:
    code = (
        "import multiprocessing, types; from unhang.inside.guards.weighing import start_method;"
        "print(start_method(types.SimpleNamespace(multiprocessing_context=None)));"
        "multiprocessing.set_start_method('spawn')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == start_method(loader(Images()))


def _watched(data: Any, said: list[str], limit_s: float = 30, **more: Any) -> WatchedLoader[Any]:
    return WatchedLoader(loader(data, batch_size=1, **more), limit_s, lambda _, text: said.append(text))


def test_a_watched_loader_gives_what_the_loader_gives() -> None:
    said: list[str] = []
    watched = _watched(TensorDataset(torch.arange(6)), said)
    assert len(watched) == 6
    for _ in range(2):
        assert [int(batch[0]) for batch in watched] == list(range(6))
    assert [int(batch[0]) for batch in _watched(TensorDataset(torch.arange(6)), said, num_workers=0)] == list(range(6))
    assert list(watch_loader([1, 2, 3])) == [1, 2, 3]
    for batch in watched:
        assert batch
        break
    assert said == []
    assert not [t for t in threading.enumerate() if t.name == "unhang-loader" and not t.daemon]


@pytest.mark.parametrize(
    ("fault", "meaning"),
    [("SIGKILL", "usually the kernel, because memory ran out"), ("SIGBUS", "usually /dev/shm is full")],
)
def test_a_worker_that_is_killed_is_named_with_what_it_means(
    fault: str, meaning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with pytest.raises(RuntimeError) as caught:
        list(_watched(Faulty(fault), said))
    # torch raises in its handler of SIGCHLD, wherever the program is then: once is enough.
    monkeypatch.setattr(torch.utils.data._utils.signal_handling, "_error_if_any_worker_fails", int)
    assert len(said) == 1, said
    assert said[0].startswith("worker 1 (pid ")
    assert f"was killed by {fault}: {meaning}" in said[0]
    assert "descriptors open of" in said[0]
    assert "MB of /dev/shm free" in said[0]
    text = "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"was killed by {fault}" in text
    caught.value.__traceback__ = None  # it holds the loader, and that its workers
    gc.collect()


def test_a_death_that_is_told_during_the_body_of_the_loop_is_named() -> None:
    said: list[str] = []
    data = FaultyLater("SIGKILL")
    with pytest.raises(RuntimeError, match=r"is killed by signal|exited unexpectedly"):  # noqa: PT012
        for _ in _watched(data, said):
            data.in_body.set()
            time.sleep(20)
    assert len(said) == 1
    assert "was killed by SIGKILL" in said[0]


def test_a_broken_connection_to_a_dead_worker_becomes_its_death() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])

    class Broken:
        _workers = (process,)

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            raise ConnectionResetError("Connection reset by peer")

    said: list[str] = []
    with pytest.raises(RuntimeError, match=r"DataLoader worker 0 \(pid \d+\) was killed by SIGKILL"):
        list(WatchedLoader(Broken(), 30, lambda _, text: said.append(text)))
    assert len(said) == 1
    assert process.wait() == -signal.SIGKILL


@pytest.mark.timeout(30)
def test_a_worker_that_leaves_in_silence_is_named() -> None:
    said: list[str] = []
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(_watched(Faulty("exit"), said))
    assert "has ended with exit code 0" in said[0]


def test_workers_of_an_iterable_dataset_may_end() -> None:
    said: list[str] = []
    assert len(list(_watched(Tokens(), said))) == 16
    assert said == []


def test_a_stuck_worker_is_named_with_its_stack() -> None:
    said: list[str] = []
    watched = _watched(Faulty("slower"), said, limit_s=0.5)
    assert [int(batch) for batch in watched] == list(range(8))
    waited = next(
        text for text in said if "the loop has waited for a batch for " in text
    )  # a slow start is told before
    assert "2 of 2 workers live" in waited
    assert "worker 1 (pid " in waited
    assert " whose batch is next: waiting" in waited
    assert "__getitem__ (" in waited or "no stack: py-spy" in waited


def test_the_counts_are_live() -> None:
    watched = _watched(Images(), [])
    assert watched.counts().workers == 0
    for _ in watched:
        counts = watched.counts()
        assert (counts.workers, len(counts.worker_fds)) == (2, 2)
        assert min(counts.worker_fds) > 3
        assert counts.open_fds is not None
        break


def test_a_loader_without_workers_shows_the_stack_of_the_loop() -> None:
    said: list[str] = []
    assert len(list(_watched(Faulty("slow"), said, limit_s=0.2, num_workers=0))) == 8
    assert "it has no workers" in said[0]
    assert "in __getitem__" in said[0]


def test_the_start_of_the_workers_is_watched() -> None:
    class Slow:
        def __iter__(self) -> Iterator[int]:
            time.sleep(1)
            return iter([1])

    said: list[str] = []
    assert list(WatchedLoader(Slow(), 0.2, lambda _, text: said.append(text))) == [1]
    assert "the loader has been starting its workers for" in said[0]
    assert "time.sleep(1)" in said[0]


def test_the_end_of_a_process_is_seen_without_reaping_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    until = time.monotonic() + 20
    while ended(process) is None and time.monotonic() < until:
        time.sleep(0.02)
    assert ended(process) == 3
    assert process.wait() == 3
