"""Regular expressions that are compiled when they are first used: a verdict needs few of the many, and some take milliseconds."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Later:
    """Stands for a pattern; looks each of its methods up once."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._given: Any = pattern, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._given), name)
        setattr(self, name, found)
        return found


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """`re.compile`, later: an error in the pattern shows at its first use. Only its methods serve, not the functions of `re`."""
    return cast("re.Pattern[AnyStr]", _Later(pattern, flags))
