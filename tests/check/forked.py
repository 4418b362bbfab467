"""A call in a fork of the test, with what the test has put into memory: fakes, other ranks, namespaces. Checks themselves never fork like this."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable
from typing import Any

from unhang.check.calls import TookTooLong


def forked(call: Callable[[], Any], limit_s: float) -> Any:
    """As `unhang.check.calls.limited`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, json.dumps({"value": call()}).encode())
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs into the answer
            os.write(writer, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text = b""
    try:
        while select.select([reader], [], [], limit_s)[0]:
            part = os.read(reader, 1 << 16)
            if not part:
                answer = json.loads(text)
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["value"]
            text += part
        raise TookTooLong(f"no answer within {limit_s:g} s")
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
