"""Stacks that a process writes of itself: waited for as long as it needs, and no longer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.slowness import slowness

from unhang.watch.evidence import STACK_SIGNAL, ask_faulthandler

# A process that gets no processor for a while: its stacks come late, and in two parts.
LATE = f"""
import signal, sys, time
path = sys.argv[1]
def write(*_):
    time.sleep(0.3)
    with open(path, "a") as file:
        file.write("Current thread 0x1 (most recent call first):\\n")
        file.flush()
        time.sleep(0.02)
        file.write('  File "train.py", line 12 in warn\\n')
signal.signal({int(STACK_SIGNAL)}, write)
print("ready", flush=True)
for _ in range(600):  # a signal just before a long sleep would be handled after it
    time.sleep(0.1)
"""


def test_late_stacks_are_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "faulthandler.txt"
    path.touch()
    with subprocess.Popen([sys.executable, "-c", LATE, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ask_faulthandler({process.pid: path}, wait_s=5 * slowness())
        assert path.read_text().endswith("line 12 in warn\n")
        process.kill()


def test_a_process_that_does_not_answer_costs_the_limit(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        process.send_signal(19)
        began = time.monotonic()
        ask_faulthandler({process.pid: tmp_path / "none.txt"}, wait_s=0.2)
        assert time.monotonic() - began >= 0.2
        process.kill()


def test_nobody_to_ask_costs_nothing() -> None:
    began = time.monotonic()
    ask_faulthandler({}, wait_s=60)
    assert time.monotonic() - began < 30
