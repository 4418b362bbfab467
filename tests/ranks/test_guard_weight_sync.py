"""A learner and two generators in processes of their own: who dies or hangs is named, and nobody stays paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.inside.guards.weights import WeightSync

from .guard_scripts import example_of, run

SETUP = """
import signal
from unhang.inside.guards.weights import WeightSync
from unhang.errors import GroupInUse, WeightSyncFailed

def weights(value):
    return {"w1": torch.full((3, 4), float(value)), "none": torch.zeros(0), "w2": torch.full((5,), value, dtype=torch.bfloat16)}

def generate(sync, until_s=20, work_s=0.01):
    "A generator's loop; says which versions it got."
    until = time.monotonic() + until_s
    while not sync.is_over and time.monotonic() < until:
        time.sleep(work_s)
        new = sync.take()
        if new is not None:
            assert new["w2"].dtype == torch.bfloat16 and new["w2"].tolist() == [sync.version] * 5
            say("version", sync.version, new["w1"].unique().tolist())
    say("end with", sync.version, "over" if sync.is_over else "limit")

def group_of(through):
    return dist.new_group([0, 1, 2], backend="gloo", timeout=timedelta(seconds=30)) if through == "group" else None

def is_running(sync, generator, order):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        status = sync._line.status(generator)
        if status.order >= order and status.state == "running":
            return True
        time.sleep(0.01)
    return False
"""

END = """
dist.barrier()
dist.destroy_process_group()
"""

BOTH = pytest.mark.parametrize("through", ["store", "group"])


def test_without_it_a_generator_that_does_not_come_hangs_the_learner(tmp_path: Path) -> None:
    body = """
begin(timeout_s=600)
group = dist.new_group([0, 1, 2], timeout=timedelta(seconds=600))
if rank == 1:
    time.sleep(600)  # busy with a request
for tensor in (torch.ones(3), torch.zeros(5)):
    dist.broadcast(tensor, 0, group=group)
dist.barrier(group=group)
say("synchronised")
"""
    result = run(tmp_path, body, 3, limit_s=8)
    assert result.was_ended, result
    assert "synchronised" not in result.out, result


@BOTH
def test_all_generators_get_every_version(tmp_path: Path, through: str) -> None:
    body = """
begin()
sync = WeightSync(0, [1, 2], group=group_of(sys.argv[1]), limit_s=15)
if rank == 0:
    for version in (1, 2):
        sync.publish(weights(version))
    with sync.paused():
        sync.publish(weights(5), version=5)
    assert is_running(sync, 1, 3) and is_running(sync, 2, 3)
    say(sync.versions())
    sync.close()
else:
    generate(sync)
"""
    result = run(tmp_path, SETUP + body + END, 3, through)
    assert result.code == 0, result
    assert result.said(0) == ["{1: 5, 2: 5}"], result
    for rank in (1, 2):
        assert result.said(rank)[-2:] == ["version 5 [5.0]", "end with 5 over"], result
    assert "[weight_sync]" not in result.err.replace("missed version", ""), result


@BOTH
def test_a_generator_that_hangs_is_named_and_the_other_goes_on(tmp_path: Path, through: str) -> None:
    body = """
begin()
sync = WeightSync(0, [1, 2], group=group_of(sys.argv[1]), limit_s=1.5)
if rank == 0:
    sync.publish(weights(1))
    assert is_running(sync, 1, 1)
    sync._line.put("hang now", "1")
    time.sleep(0.3)
    try:
        sync.publish(weights(2))
    except WeightSyncFailed as error:
        say(error)
    assert is_running(sync, 2, 2)
    say(sync.versions(), sync.version)
    sync.drop(1)
    say(sync.publish(weights(2)))
    assert is_running(sync, 2, 3)
    sync.close()
elif rank == 1:
    while not sync._line._store.check(["hang now"]):
        sync.take()
    say("stuck in a request")
else:
    generate(sync)
"""
    result = run(tmp_path, SETUP + body + END, 3, through)
    assert result.code == 0, result
    assert result.said(0) == ["generator 1 did not pause within 1.5 s", "{1: 1, 2: 1} 1", "2"], result
    assert result.said(2) == ["version 1 [1.0]", "version 2 [2.0]", "end with 2 over"], result
    assert "generator 2 goes on with version 1: WeightSyncFailed: generator 1 did not pause" in result.err, result


@BOTH
def test_a_generator_that_hangs_in_the_middle_of_the_transfer(tmp_path: Path, through: str) -> None:
    body = """
from unhang.inside.guards import receiving as weight_store
begin()
sync = WeightSync(0, [1, 2], group=group_of(sys.argv[1]), limit_s=2)
if rank == 0:
    try:
        sync.publish(weights(1))
    except WeightSyncFailed as error:
        say(error)
    assert is_running(sync, 2, 1)
    assert is_running(sync, 1, 1)
    say(sync.publish(weights(1)))
    assert is_running(sync, 1, 2) and is_running(sync, 2, 2)
    sync.close()
else:
    whole = weight_store.room_for
    def slow(*arguments):
        weight_store.room_for = whole
        time.sleep(4)
        return whole(*arguments)
    if rank == 1:
        weight_store.room_for = slow
    generate(sync)
"""
    result = run(tmp_path, SETUP + body + END, 3, through)
    assert result.code == 0, result
    named = {
        "store": "generator 1 did not take version 1 within 2 s",
        "group": "the group broke while sending: TimeoutError: w1 did not get through within 2 s; "
        "generator 1 did not come to receive",
    }
    assert result.said(0) == [named[through], "1"], result
    for rank in (1, 2):
        assert result.said(rank) == ["version 1 [1.0]", "end with 1 over"], result
    assert ("the group is not used any more" in result.err) == (through == "group"), result


@BOTH
@pytest.mark.parametrize("moment", ["paused", "sending"])
def test_a_learner_that_is_killed_leaves_the_generators_with_the_old_weights(
    tmp_path: Path, through: str, moment: str
) -> None:
    # The learner is rank 0, and ends with exit code 0 as far as the launcher can see: the generators go on by themselves.
    body = """
from unhang.inside.guards import receiving as weight_store
begin()
sync = WeightSync(0, [1, 2], group=group_of(sys.argv[1]), limit_s=1.5)
if rank == 0:
    sync.publish(weights(1))
    assert is_running(sync, 1, 1) and is_running(sync, 2, 1)
    if sys.argv[2] == "sending":
        sync._await = lambda *_: os._exit(0)
    with sync.paused():
        os._exit(0)
else:
    generate(sync, until_s=6)
    os._exit(0)
"""
    if moment == "sending":
        body = body.replace("sync._await = lambda *_: os._exit(0)", DIES_WHEN_SENT)
    result = run(tmp_path, SETUP + body, 3, through, moment)
    assert result.code == 0, result
    assert result.seconds < 40, result
    for rank in (1, 2):
        assert result.said(rank) == ["version 1 [1.0]", "end with 1 limit"], result
    assert "no sign from the learner for 1.5 s" in result.err, result
    assert "goes on with version 1" in result.err, result


# All have the new weights, and nobody has said that they are to be used.
DIES_WHEN_SENT = """sync._change = (lambda change: lambda order: change(order) if order.state != "run" else os._exit(0))(sync._change)
        sync.publish(weights(2))"""


def test_generators_may_stop_with_a_learner_that_was_killed_with_the_store(tmp_path: Path) -> None:
    # Two roles without a process group; the learner hosts the store, which goes with it.
    body = """
port = 0
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    open("port.new", "w").write(str(store.port))
    os.rename("port.new", "port")
else:
    while not os.path.exists("port"):
        time.sleep(0.02)
    store = dist.TCPStore("127.0.0.1", int(open("port").read()), is_master=False, wait_for_workers=False)
sync = WeightSync(100, [1, 2], rank=rank or 100, store=store, limit_s=5, on_lost="keep" if rank == 1 else "stop")
if rank == 0:
    sync.publish(weights(1))
    assert is_running(sync, 1, 1) and is_running(sync, 2, 1)
    os._exit(0)
try:
    generate(sync)
except WeightSyncFailed as error:
    say("stopped:", str(error).split("(")[0])
os._exit(0)
"""
    result = run(tmp_path, SETUP + "os.chdir(os.path.dirname(sys.argv[0]))" + body, 3)
    assert result.code == 0, result
    assert result.said(1) == ["version 1 [1.0]", "end with 1 over"], result
    assert result.said(2) == ["version 1 [1.0]", "stopped: generator 2: the store is gone "], result


def test_an_error_of_the_learner_resumes_or_stops_the_generators(tmp_path: Path) -> None:
    body = """
begin()
for on_error in ("resume", "stop"):
    sync = WeightSync(0, [1, 2], limit_s=15, name=on_error, on_error=on_error)
    if rank == 0:
        try:
            with sync.paused():
                sync.publish(weights(1))
                raise ValueError("the gather failed")
        except ValueError as error:
            say(error, sync.version)
        if on_error == "resume":
            assert is_running(sync, 1, 1) and is_running(sync, 2, 1)
            sync.close()
    else:
        try:
            generate(sync)
        except WeightSyncFailed as error:
            say(error)
    dist.barrier()
"""
    result = run(tmp_path, SETUP + body + END, 3)
    assert result.code == 0, result
    assert result.said(0) == ["the gather failed 0"] * 2, result
    for rank in (1, 2):
        stopped = f"the learner stopped generator {rank}: ValueError: the gather failed"
        assert result.said(rank) == ["end with 0 over", stopped], result
    assert "generator 1 goes on with version 0: ValueError: the gather failed" in result.err, result


def test_a_learner_that_comes_back_too_late_is_told_so(tmp_path: Path) -> None:
    body = """
begin()
sync = WeightSync(0, [1, 2], limit_s=1)
if rank == 0:
    try:
        with sync.paused():
            time.sleep(3)  # the gather of another rank hangs
            sync.publish(weights(1))
    except WeightSyncFailed as error:
        say(error)
    say(sync.publish(weights(1)))
    assert is_running(sync, 1, 2) and is_running(sync, 2, 2)
    sync.close()
else:
    generate(sync)
"""
    result = run(tmp_path, SETUP + body + END, 3)
    assert result.code == 0, result
    said = result.said(0)
    assert said[0].startswith("the generators have gone on: generator "), result
    assert said[0].endswith("had no sign from the learner for 1 s"), result
    assert said[1] == "1", result
    for rank in (1, 2):
        assert result.said(rank) == ["version 1 [1.0]", "end with 1 over"], result


def test_two_controller_threads_that_interleave_are_refused(tmp_path: Path) -> None:
    # Each step trains on a group of all ranks; a second thread syncs the weights meanwhile.
    body = """
begin()
sync = WeightSync(0, [1, 2], group=group_of("group"), limit_s=15)
if rank == 0:
    errors = []
    inside, done = threading.Event(), threading.Event()
    def train():
        with sync.turn("train step"):
            inside.set()
            done.wait(10)
    thread = threading.Thread(target=train, name="main loop")
    thread.start()
    inside.wait(10)
    try:
        sync.publish(weights(1))
    except GroupInUse as error:
        say(error)
    done.set()
    with sync.turn("weight sync", wait_s=10):
        say(sync.publish(weights(1)))
    thread.join()
    assert is_running(sync, 1, 1) and is_running(sync, 2, 1)
    sync.close()
else:
    generate(sync)
"""
    result = run(tmp_path, SETUP + body + END, 3)
    assert result.code == 0, result
    assert (
        "thread 'MainThread' wants to begin 'weight sync' with 'weights', which thread 'main loop' uses" in result.out
    )
    assert "for 'train step'" in result.out, result
    assert result.said(1) == ["version 1 [1.0]", "end with 1 over"], result


def test_the_example_in_the_documentation(tmp_path: Path) -> None:
    begin = "begin()\nimport unhang\nunhang.WeightSync = WeightSync\n"
    result = run(tmp_path, SETUP + begin + example_of(WeightSync) + END, 2)
    assert result.code == 0, result
    assert result.err.count("[weight_sync]") == 0, result
