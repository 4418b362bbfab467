"""The cases of network-unstable."""

from __future__ import annotations

from typing import Any

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet, ended, raised

_CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"

_ENDS = {r: ended("os._exit", 1, at_s=10.2) for r in (0, 1)}

_RESET = "[rank3]:[W socket.cpp:558] [c10d] The client socket has failed to connect to [node-a]:17845 (errno: 104 - Connection reset by peer).\n"

_COUNTED = (
    "[rank0]: INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 0, "
    "key: store_based_barrier_key:1 (world_size=8, worker_count={}, timeout=0:30:00)\n"
)

_ENDED = "[rank3]: RuntimeError: Connection reset by peer\nsrun: error: node-b: task 3: Exited with exit code 1\n"

_CRASHED: dict[str, Any] = {"world": 2, "hang": None, "exit_code": 1}

CASES = {
    "network-unstable": (
        Fires(
            log_case(
                "worker0:15:91 [3] include/socket.h 398 NCCL WARN Call to write failed : Connection reset by peer.\n"
                "worker0:15:91 [3] include/socket.h 398 NCCL WARN Call to recv failed : Connection reset by peer.\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.1<4242> failed : Connection "
                "timed out\n"
            ),
            (),
        ),
        Fires(make_case({}, errors=dict.fromkeys((0, 1), _CLOSED), exits=_ENDS, **_CRASHED), ()),
        Quiet(
            make_case({}, errors={0: _CLOSED}, exits={0: _ENDS[0], 1: ended("exit", 0, at_s=9)}, **_CRASHED),
            "the peer had come to its end",
        ),
        Quiet(
            make_case({}, errors={0: _CLOSED}, exits={0: _ENDS[0], 1: ended("signal", -9, at_s=10.1)}, **_CRASHED),
            "the peer was killed, which was noticed late",
        ),
        Quiet(
            make_case(
                {},
                errors={0: _CLOSED, 1: raised("RuntimeError: Timed out waiting 3000ms for recv operation@main:9", 9.9)},
                exits=_ENDS,
                **_CRASHED,
            ),
            "the peer closed it, after its own timeout",
        ),
        Quiet(
            log_case(
                '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in <module>\n'
                "[rank1]: ValueError: corrupt\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to recv from 10.0.0.1<4242> failed : Connection reset by peer\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to send to 10.0.0.1<4242> failed : Connection reset by peer\n"
            ),
            "a dead peer resets its connections",
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to recv from 10.0.0.1<4242> failed : Connection reset by peer\n"
            ),
            "one side only: the peer may have ended",
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-b<47494>\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to recv from 10.0.0.1<4242> failed : Connection reset by peer\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to send to 10.0.0.1<4242> failed : Connection reset by peer\n"
            ),
            "a peer that closed its connections has ended",
        ),
        Fires(log_case(_RESET + _COUNTED.format(7) + _ENDED), (3,)),
        Quiet(log_case(_RESET + _COUNTED.format(1) + _ENDED), "nobody else reached the store"),
        Quiet(
            log_case(_RESET + _COUNTED.format(7) + "".join(f"[rank0]: step {n} loss 1.{n}\n" for n in range(9))),
            "it came through on another try",
        ),
    ),
}
