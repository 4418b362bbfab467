"""torch's DataLoader and its workers."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "loader.timed_out",
        r"DataLoader timed out after (?P<seconds>\d+(?:\.\d+)?) seconds",
        ("DataLoader timed out after",),
        ("RuntimeError: DataLoader timed out after 120 seconds",),
        says="crash",
    ),
    Pattern(
        "loader.worker_killed",
        r"DataLoader worker \(pid (?P<pid>[\d.x?]+)\) is killed by signal: (?P<signal>[A-Z][A-Za-z]+(?: [a-z]+)?)",
        ("is killed by signal: ",),
        (
            "RuntimeError: DataLoader worker (pid 71810) is killed by signal: Killed. ",
            "RuntimeError: DataLoader worker (pid 4471) is killed by signal: Segmentation fault. ",
            "RuntimeError: DataLoader worker (pid ...) is killed by signal: Killed",
        ),
        says="crash",
    ),
    Pattern(
        "loader.worker_exited",
        r"DataLoader worker \(pid\(?s?\)? ?(?P<pids>[\d, ]+)\) exited unexpectedly",
        ("exited unexpectedly",),
        (
            "RuntimeError: DataLoader worker (pid(s) 4712) exited unexpectedly",
            "RuntimeError: DataLoader worker (pid(s) 12, 34) exited unexpectedly",
        ),
        not_examples=("worker exited unexpectedly",),
        says="crash",
    ),
    Pattern(
        "loader.worker_error",
        r"Caught (?P<type>[\w.]+) in DataLoader worker process (?P<worker>\d+)",
        ("in DataLoader worker process",),
        ("ValueError: Caught ValueError in DataLoader worker process 0.",),
    ),
)
