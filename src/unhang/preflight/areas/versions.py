"""The area `versions`: libraries, driver and training code of each rank. What must be equal on all is compared by the rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unhang.model import Reading, Unavailable
from unhang.preflight.context import Context
from unhang.probe.code_version import NoVersion, code_version
from unhang.probe.limited import TookTooLong, limited
from unhang.probe.packages import versions

SCOPE = "rank"
LIMIT_S = 20.0
_LIBRARIES_LIMIT_S, _CODE_LIMIT_S = 8.0, 10.0
SETTINGS = ("CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_USE_COMM_NONBLOCKING")  # that make a version a bad one, or mend it


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """Versions of libraries and driver, then of the code; in children, as either may lie on a file system that is gone."""
    environ = dict(context.environ)
    try:
        found = limited(lambda: versions(environ), _LIBRARIES_LIMIT_S)
    except (TookTooLong, OSError, RuntimeError) as error:
        yield Unavailable("versions.component", str(error))
    else:
        for name, version in found.items():
            yield Reading("versions.component", name, {"version": version})
    for name in SETTINGS:
        if name in environ:
            yield Reading("versions.setting", name, {"value": environ[name][:20]})
    yield _code(context.options.code)


def _code(named: Path | None) -> Reading | Unavailable:
    place = named or Path()

    def read() -> dict[str, Any]:
        try:
            return {"found": code_version(place, is_named=named is not None)}
        except NoVersion as error:
            return {"why": str(error)}

    try:
        answer = limited(read, _CODE_LIMIT_S)
    except (TookTooLong, OSError, RuntimeError) as error:
        return Unavailable("versions.code", str(error))
    if "why" in answer:
        return Unavailable("versions.code", answer["why"])
    return Reading("versions.code", str(place.absolute()), answer["found"])
