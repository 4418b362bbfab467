"""Ports that stay free until they are used: below those that the kernel gives to whoever asks for any."""

from __future__ import annotations

import itertools
import random
import socket
from contextlib import suppress

_FIRST, _COUNT = 20_000, 12_000
# Each process goes its own way, and comes to none a second time.
_NEXT = itertools.count(random.SystemRandom().randrange(_COUNT))


def free_port() -> int:
    """One that nobody listens on, and that no other job comes to by itself."""
    for number in itertools.islice(_NEXT, 100):
        port = _FIRST + number % _COUNT
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("none of 100 ports is free")
