"""The area `environment`: the variables of each rank that libraries of the job read. Secrets stay where they are."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping

from unhang.check.areas import Context
from unhang.model import Reading
from unhang.read.environment import looks_secret
from unhang.read.environment.sources import of_process

SCOPE = "rank"
LIMIT_S = 5.0
_MOST = 1000
# Beside those that `unhang env` has an opinion on: what decides which code is loaded, and how it communicates.
_COMPARED = re.compile(r"(?:NCCL|TORCH|PYTORCH|GLOO|CUDA|OMP|MKL|UCX|FI)_\w+|PYTHON[A-Z]+|LD_PRELOAD|LD_LIBRARY_PATH")


def probe(context: Context) -> Iterator[Reading]:
    """One reading for each variable, and one that says that they were read."""
    found = variables(context.environ)
    yield Reading("environment.process", "", {"variables": len(found)})
    for name, value in found.items():
        yield Reading("environment.variable", name, {"value": value})


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to the job; none whose name or value looks like a secret."""
    named = {a.name: a.value or "" for a in of_process(environ).assignments}
    named |= {name: value for name, value in environ.items() if _COMPARED.fullmatch(name)}
    return {name: _short(value) for name, value in sorted(named.items()) if not looks_secret(name, value)}


def _short(value: str) -> str:
    """A value that can still be compared where it is too long to be shown."""
    if len(value) <= _MOST:
        return value
    return f"{value[:_MOST]}... ({len(value)} characters, {zlib.crc32(value.encode()):08x})"
