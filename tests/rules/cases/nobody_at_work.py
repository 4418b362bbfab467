"""The cases of nobody-at-work."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import replace

from unhang.model import Case, Frame, ThreadStack
from unhang.testing import Fires, Quiet, make_case

_GETS = Frame("/env/site-packages/ray/_private/worker.py", 1007, "get_objects")
_PROGRAM = "/example/nobody_at_work/learner.py"
_SOURCE = """import ray

def fit():
    return ray.get(sampler.rollout.remote())

def rollout():
    return ray.get(board.newer_than.remote(3))
"""
_GATE = "/example/nobody_at_work/gate.py"
_LOOP = """import ray

def pass_gate(gate, number, report):
    ray.get(gate.arrive.remote(number, report))
    while not ray.get(gate.is_open.remote(number)):
        time.sleep(0.05)

@ray.remote(max_restarts=-1)
class Gate:
    def arrive(self, number, report):
        self.arrived.setdefault(number, []).append(report)

    def is_open(self, number):
        return len(self.arrived.get(number, ())) == 2
"""
linecache.cache[_GATE] = (len(_LOOP), None, _LOOP.splitlines(keepends=True), _GATE)
linecache.cache[_PROGRAM] = (len(_SOURCE), None, _SOURCE.splitlines(keepends=True), _PROGRAM)
_ASKS = Frame(_GATE, 6, "pass_gate")
_FIT, _ROLLOUT = Frame(_PROGRAM, 4, "fit"), Frame(_PROGRAM, 7, "rollout")


def _learners(
    *actors: tuple[str, tuple[Frame, ...]], beside: int = 2, at: tuple[Frame, ...] = (_GETS, _FIT), **given: object
) -> Callable[[], Case]:
    """Two ranks, of which `beside` wait for a result of Ray at `at`. `actors`: the calls of Ray that are under way, each with its stack."""

    def made() -> Case:
        waits = {"stacks": (ThreadStack("MainThread", at, is_main=True),)}
        trains = {"stacks": (ThreadStack("MainThread", (_FIT,), is_main=True),)}
        more = {r: waits if r < beside else trains for r in range(2)}
        case = make_case(
            {r: ["barrier@main:1"] for r in range(2)}, world=2, more=more, **{"hang": "suspected", **given}
        )
        stacks = tuple(
            ThreadStack(f"ray::{call}", frames, process_id=90 + i) for i, (call, frames) in enumerate(actors)
        )
        return replace(case, launcher_stacks=stacks)

    return made


_DRIVER = "/example/nobody_at_work/drive.py"
_DRIVES = """import ray

scores = ray.get(evaluate.remote(weights))
scores = ray.get(evaluate.remote(weights), timeout=60)
table = score(weights)
"""
linecache.cache[_DRIVER] = (len(_DRIVES), None, _DRIVES.splitlines(keepends=True), _DRIVER)
_IDLE = ThreadStack(
    "MainThread", (Frame("/env/site-packages/ray/_private/worker.py", 1069, "main_loop"),), is_main=True
)


def _actors(
    line: int, *workers: tuple[str, tuple[Frame, ...]], stacks: tuple[ThreadStack, ...] = (_IDLE,)
) -> Callable[[], Case]:
    """Two ranks without a task, and where the program stands that gives them theirs. `workers`: Ray's other processes, each with its stack."""

    def made() -> Case:
        case = make_case(
            {r: ["barrier@main:1"] for r in range(2)},
            world=2,
            more={r: {"stacks": stacks} for r in range(2)},
            hang="suspected",
        )
        at = Frame(_DRIVER, line, "<module>")
        main = ThreadStack("MainThread", (at,) if line == 5 else (_GETS, at), is_main=True)
        others = (ThreadStack(f"ray::{name}", frames, process_id=90 + i) for i, (name, frames) in enumerate(workers))
        return replace(case, launcher_stacks=(main, *others))

    return made


_SAMPLER, _BOARD = ("Sampler.rollout", (_GETS, _ROLLOUT)), ("Board.newer_than", ())
CASES = {
    "nobody-at-work": (
        Fires(_learners(_SAMPLER, _BOARD), (), 4, cause="rank-stuck-in-user-code"),
        Fires(_learners(_SAMPLER), (), 4),  # they wait for each other, as far as is seen
        Fires(_learners(), (), 4),
        Fires(_learners(at=(_ASKS,)), (), 8),  # the actor that is asked may have been made anew
        Quiet(_learners(_SAMPLER, _BOARD, beside=1), "one rank waits for something else"),
        Quiet(_learners(_SAMPLER, _BOARD, hang=None, exit_code=0), "a job that ended"),
        Quiet(
            make_case(
                {0: ["barrier@main:1 !"]},
                world=2,
                more={r: {"stacks": (ThreadStack("MainThread", (_GETS, _FIT), is_main=True),)} for r in range(2)},
            ),
            "one rank is in a call of a group",
        ),
        Fires(_actors(3, ("Learner", ()), ("Learner", ()), ("Surveyor", ())), (), 3),
        Quiet(_actors(3, ("Learner", ()), ("evaluate", (_FIT,))), "a worker of Ray is amid a call"),
        Quiet(_actors(3, ("Sampler.rollout", ())), "a worker of Ray is amid a call"),
        Quiet(_actors(4, ("Learner", ())), "the wait of the driver has a limit"),
        Quiet(_actors(5, ("Learner", ())), "the driver works"),
        Quiet(
            _actors(3, ("Learner", ()), stacks=(_IDLE, ThreadStack("sampler", (_FIT,)))),
            "a rank has a thread of its own at work",
        ),
    ),
}
