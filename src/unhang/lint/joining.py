"""What names are worth where two branches meet again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint.values import MAYBE_NONE, RANK, Value, either

if TYPE_CHECKING:
    from unhang.lint.branches import Way


def joined_env(a: dict[str, Value], b: dict[str, Value]) -> dict[str, Value]:
    """What names are worth after two branches."""
    out = dict(b)
    for name, value in a.items():
        other = b.get(name)
        out[name] = value if other is None or other is value else either(value, other)
    return out


def mark_none(env: dict[str, Value], here: Way, there: Way, before: dict[str, Value]) -> None:
    """Names that are None on some ranks from here on; what was so and is made on the other ranks now, is so no more."""
    for name, value in env.items():
        a, b, old = here.env.get(name), there.env.get(name), before.get(name)
        if a is None or b is None or a is b:
            continue
        made, zero = (a, here.cause.value.zero) if b == old else (b, there.cause.value.zero)
        if (a.const is None) != (b.const is None):
            env[name] = value._replace(dep=value.dep | MAYBE_NONE | RANK, zero=zero)
        elif old is not None and old.dep & MAYBE_NONE and None not in (zero, old.zero) and zero != old.zero:
            env[name] = made._replace(dep=0, zero=None)
