"""The process that makes the calls of the search: it forms a group, tests it, leaves it, and waits for the next one.

Commands come as JSON lines on stdin, `{"test": 3, "ranks": [0, 2], "prefix": "...", "limit_s": 10}`; each is answered by one
line on stdout: `{"test": 3, "state": "ok", "seconds": 0.01, "reason": ""}`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from unhang.preflight.collectives.worker import own_stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers commands until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m unhang.preflight.links.worker", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--start-limit", type=float, required=True)
    for name in ("backend", "device", "store"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args(arguments)
    ours = own_stdout()
    from unhang.preflight.links.exchange import Tester

    tester = Tester(options.rank, options.backend, options.device, options.store, options.start_limit)
    os.write(ours, b'{"ready": true}\n')
    for line in sys.stdin:
        command = json.loads(line)
        state, seconds, reason = tester.test(command["ranks"], command["prefix"], command["limit_s"])
        answer = {"test": command["test"], "state": state, "seconds": seconds, "reason": reason}
        os.write(ours, json.dumps(answer).encode() + b"\n")
    return 0


if __name__ == "__main__":
    code = main()
    # Not through the destructors: a group that failed can hang or abort there.
    os._exit(code)
