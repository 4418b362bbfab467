"""Whether one rank has moved, by what several looks showed; and that no value of a variable is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slowness import slowness
from unhang.attach.looks import Looked, _note, _Seen, _summed
from unhang.attach.processes import Process
from unhang.attach.ranks import Rank
from unhang.watch.process import ProcessProbe, take_stacks

PID = 999_999_999  # there is no such process
C10D = "/x/site-packages/torch/distributed/distributed_c10d.py"
IN_CALL = [{"name": "all_reduce", "filename": C10D, "line": 3000}]
POLLS = [{"name": "_poll", "filename": "/usr/lib/python3.11/multiprocessing/connection.py", "line": 440}]


def main_at(line: int = 10, function: str = "main", above: Any = (), **variables: str) -> list[dict[str, Any]]:
    """The frames of one look, innermost first."""
    own = [{"name": k, "arg": False, "repr": v} for k, v in variables.items()]
    return [*above, {"name": function, "filename": "/x/train.py", "line": line, "locals": own}]


def looked(*frames: list[dict[str, Any]], state: str = "S", **counts: Any) -> Looked:
    """Looks at a rank; `counts`: what happened between them."""
    rank = Rank(1, 4, Process(PID, 1, "S", 0, 0, ("python",), Path(f"/proc/{PID}")))
    seen = _Seen(rank, ProcessProbe(PID), state={"state": state}, states=[state] * len(frames), between_s=2.0)
    for one in frames:
        _note(seen, [{"os_thread_id": PID, "thread_name": "MainThread", "frames": one}])
    for name, value in counts.items():
        setattr(seen, name, value)
    return _summed(seen, 3.0)


CASES = {
    "it stands in a call": (looked(main_at(above=IN_CALL), main_at(above=IN_CALL)), False),
    "the variables of a call change": (looked(main_at(above=IN_CALL, i="1"), main_at(above=IN_CALL, i="2")), True),
    "it slept and woke in a call": (
        looked(main_at(above=IN_CALL), main_at(above=IN_CALL), slept=5, calls=["futex"]),
        True,
    ),
    "a call that polls": (
        looked(main_at(above=IN_CALL), main_at(above=IN_CALL), slept=900, calls=["nanosleep"]),
        False,
    ),
    "a call that spins for its device": (looked(main_at(above=IN_CALL), main_at(above=IN_CALL), used_s=2.0), False),
    "backward passes go on": (looked(main_at(above=IN_CALL), main_at(above=IN_CALL), autograd=4), True),
    "other functions of the program": (looked(main_at(10, "load"), main_at(20, "save")), True),
    "other lines of one function": (looked(main_at(10), main_at(11)), None),
    "variables of one function": (looked(main_at(i="1"), main_at(i="2")), None),
    "one line, no processor": (looked(main_at(), main_at()), False),
    "one line, all the processor": (looked(main_at(), main_at(), used_s=2.0), None),
    "one line, and it would run if it could": (looked(main_at(), main_at(), state="R"), None),
    "it wakes again and again": (looked(main_at(), main_at(), slept=4), None),
    "what it started works": (looked(main_at(), main_at(), helped=True), True),
    "it sleeps and wakes soon": (looked(main_at(), main_at(), sleeps_s=20.0), None),
    "it sleeps for long": (looked(main_at(), main_at(), sleeps_s=600.0), False),
    "the library below polls": (looked(main_at(above=POLLS), main_at(above=[{**POLLS[0], "line": 441}])), False),
    "the library below works": (
        looked(main_at(above=POLLS), main_at(above=[{**POLLS[0], "line": 441}]), used_s=2.0),
        None,
    ),
    "it is stopped": (looked(main_at(), main_at(), state="T"), False),
    "it sits in the kernel": (looked(main_at(), main_at(), state="D"), False),
    "it has ended": (looked(main_at(), main_at(), is_gone=True), None),
    "no stack": (looked(), None),
}


@pytest.mark.parametrize("name", CASES)
def test_whether_it_has_moved(name: str) -> None:
    seen, moved = CASES[name]
    assert seen.look["moved"] is moved, seen.look["how"]


def test_values_of_variables_are_not_kept() -> None:
    seen = looked(main_at(token="'hf_secret'"), main_at(token="'hf_secret'"))
    assert "secret" not in json.dumps([list(seen.threads), dict(seen.look), dict(seen.state)])


def test_of_a_transfer_the_peer_is_kept_and_of_a_call_whether_it_was_given_a_group() -> None:
    transfer = {
        "name": "recv",
        "filename": C10D,
        "line": 1,
        "locals": [{"name": "src", "repr": "3"}, {"name": "tag", "repr": "7"}],
    }
    wrapper = {
        "name": "_exception_logger.<locals>.wrapper",
        "filename": "/x/site-packages/torch/distributed/c10d_logger.py",
        "line": 83,
    }
    given = {
        **wrapper,
        "locals": [{"name": "kwargs", "repr": '{"group": <torch._C._distributed_c10d.ProcessGroup at 0x7f>}'}],
    }
    bare = {**wrapper, "locals": [{"name": "kwargs", "repr": "{}"}]}
    with_group = looked(main_at(above=[*IN_CALL, given]))
    assert looked(main_at(above=[transfer, bare])).look["call"] == {
        "kind": "recv",
        "peer": 3,
        "tag": 7,
        "has_group": False,
    }
    assert with_group.look["call"] == {"has_group": True}
    making = {**transfer, "name": "_new_process_group_helper", "locals": [{"name": "group_name", "repr": '"2"'}]}
    hashed = {**making, "locals": [{"name": "group_name", "repr": '"9fe8a1"'}]}
    assert looked(main_at(above=[making, bare])).look["call"] == {"group_number": 2, "has_group": False}
    assert looked(main_at(above=[hashed, bare])).look["call"] == {"has_group": False}


UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]


@pytest.mark.skipif(
    subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0, reason="no right to unshare"
)
def test_the_main_thread_of_a_process_in_a_container_is_known() -> None:
    program = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); print(1, flush=True); time.sleep(60)"
    outer = subprocess.Popen([*UNSHARE, sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert outer.stdout is not None
    try:
        outer.stdout.readline()
        (inner,) = map(int, Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
        threads = take_stacks([inner], timeout_s=20.0 * slowness())[inner]
        assert [t["thread_name"] for t in threads if t["os_thread_id"] == inner] == ["MainThread"]
        assert len({t["os_thread_id"] for t in threads}) == 2
    finally:
        os.kill(inner, signal.SIGKILL)
        outer.wait()
        outer.stdout.close()
