"""The cases of the rules on jobs that stand without a wait in a collective."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(6))
_LEFT = "/v/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be {} leaked {} objects to clean up at shutdown\n"
_KILLED = f"$ bash run.sh\n{_STEPS}^C{_LEFT.format(9, 'shared_memory')}"
_AGAIN = "$ bash run.sh\nbuilding the dataset\n"
_STANDS = """Traceback (most recent call last):
  File "/srv/train.py", line 88, in main
    data = build(args)
  File "{}", line 41, in wait
    sleep(TICK)
KeyboardInterrupt
"""
_MEETS = "/v/site-packages/feeder/shared/rendezvous.py"

_DRIVER = """(Main pid=11) Timeout (0:30:00)!
(Main pid=11) Thread 0x00007f2b2d1c7740 (most recent call first):
(Main pid=11)   File "/srv/rl/buffer.py", line 214 in take
(Main pid=11)   File "/srv/rl/loop.py", line 64 in fit
(Main pid=11)   File "/v/site-packages/ray/_private/worker.py", line 1011 in main_loop
"""
_IDLE = """(Worker pid=12) Timeout (0:30:00)!
(Worker pid=12) Thread 0x00007fd3c91c4740 (most recent call first):
(Worker pid=12)   File "/v/site-packages/ray/_private/worker.py", line 1011 in main_loop
(Worker pid=12)   File "/v/site-packages/ray/_private/workers/default_worker.py", line 330 in <module>
"""
_AT_WORK = (
    _IDLE.replace("12", "13").replace("ray/_private/worker.py", "myrl/generate.py").replace("main_loop", "decode")
)


def _counted(*counts: int, words: str = "collected {} of 96 episodes") -> str:
    return "".join(f"(Queue pid=14) {words.format(n)}\n" for n in counts)


_HELD = _counted(12, 60, 95, 95, 95, 95, 95)

CASES = {
    "left-shared-memory": (
        Fires(log_case(_KILLED + _AGAIN + _STANDS.format(_MEETS)), ()),
        Fires(log_case(_KILLED + _AGAIN + _STANDS.format("/usr/lib/python3.10/multiprocessing/synchronize.py")), ()),
        Quiet(log_case(_KILLED + _AGAIN + _STEPS + _STANDS.format(_MEETS)), "the next run trains"),
        Quiet(
            log_case(_KILLED.replace("shared_memory", "semaphore") + _AGAIN + _STANDS.format(_MEETS)),
            "semaphores alone",
        ),
        Quiet(
            log_case(f"$ bash run.sh\n{_STEPS}{_STANDS.format(_MEETS)}{_LEFT.format(3, 'shared_memory')}"),
            "the run that left it is the last one",
        ),
        Quiet(log_case(_KILLED + _AGAIN + _STANDS.format("/srv/prepare.py")), "it stands elsewhere"),
    ),
    "driver-stands": (
        Fires(log_case(_STEPS + _HELD + _DRIVER + _IDLE), ()),
        Fires(log_case(_STEPS + _counted(3, 7, 7, 7, 7, words="rollouts ready: {}/8, waiting") + _IDLE + _DRIVER), ()),
        Quiet(log_case(_STEPS + _counted(12, 60, 70, 80, 90, 95) + _DRIVER + _IDLE), "the count still moves"),
        Quiet(log_case(_STEPS + _HELD + _DRIVER + _IDLE + _AT_WORK), "a worker is at work"),
        Quiet(log_case(_STEPS + _counted(12, 60, 96, 96, 96, 96) + _DRIVER + _IDLE), "it came to its end"),
        Quiet(log_case(_STEPS + _HELD + _DRIVER + _IDLE + _STEPS), "steps follow"),
    ),
}
