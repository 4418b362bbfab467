"""Starts the ranks of a check on this machine, as torchrun would, and leaves none behind."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence

from unhang.preflight.collectives.runner import die_with

_END_LIMIT_S = 5.0


def without_options(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """A command line without these options and their values."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in names:
            skip = True
        elif not any(argument.startswith(f"{name}=") for name in names):
            kept.append(argument)
    return kept


def run_ranks(size: int, command: Sequence[str]) -> int:
    """Starts `command` as so many ranks of one job on loopback, and waits for all. The exit code of rank 0.

    Only rank 0 writes to stdout. Blocks: as long as the command; each rank has limits of its own.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        port = _free_port()
        for rank in range(size):
            process = subprocess.Popen(
                command,
                env={**os.environ, **_variables(rank, size, port)},
                stdout=None if rank == 0 else subprocess.DEVNULL,
                preexec_fn=die_with(os.getpid()),
            )
            started.append(process)
        codes = [process.wait() for process in started]
        return codes[0]
    finally:
        _end(started)


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # as torchrun sets it
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends those that still run."""
    running = [process for process in started if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
