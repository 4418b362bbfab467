"""Runs programs one after the other, each in a fork of a process that has torch loaded: a trial costs tenths of a second.

Reads one request per line (JSON: path, limit_s, arguments), answers one line (JSON: code, output). `code` is None where the
limit ran out. A program of its own that imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

_POLL_S = 0.01


def run_once(path: str, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Runs a program in a forked process group, which is ended afterwards. Returns its exit code and its output.

    Blocks: up to `limit_s`.
    """
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            _be_program(path, arguments, output)
        code, deadline = None, time.monotonic() + limit_s
        while code is None and time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
            time.sleep(_POLL_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if code is None:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _be_program(path: str, arguments: Sequence[str], output: IO[bytes]) -> None:
    """The life of the program, in the forked process. Does not return."""
    code = 1
    try:
        os.setpgid(0, 0)
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        sys.argv = [path, *arguments]
        runpy.run_path(path, run_name="__main__")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - told to whoever asked
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Answers requests until there are no more."""
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    print(json.dumps({"torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        code, output = run_once(request["path"], request["arguments"], request["limit_s"])
        print(json.dumps({"code": code, "output": output}), file=answers, flush=True)
    os._exit(0)  # an interpreter takes half a second to take torch apart


if __name__ == "__main__":
    main()
