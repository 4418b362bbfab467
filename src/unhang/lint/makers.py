"""What makes collectives when it is called, and with what objects are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unhang.lint import known, sorts
from unhang.lint.project import Project
from unhang.lint.special import is_own_seed
from unhang.lint.values import DIFFERS, LOCAL, RANK, Effect, Given, Raised, Summary, Value, either


class Makers:
    """The part of the link that knows who makes collectives."""

    project: Project
    wrapped: dict[tuple[int, str], Value]
    built: dict[tuple[int, str], dict[int, Value]]
    answered: dict[tuple[int, str], dict[int, Value | None]]

    def _asked(self, *what: Any) -> None:
        raise NotImplementedError

    def summary(self, file: int, at: int, given: frozenset[tuple[int, Value]] = frozenset()) -> Summary:
        """What a function does to its callers; `given`: to one that gives these values."""
        raise NotImplementedError

    def maker(self, several: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Of several functions or methods, the first that makes collectives."""
        makers = (s for s in several if any(e.param < 0 for e in self.summary(s[1], s[2]).effects))
        return next(makers, several[0])

    def made_by(self, v: Value, method: str) -> Iterable[Effect]:
        """The collectives that a value makes when this method of it is called."""
        sort = v.sort
        if sort is None:
            return ()
        if sort[0] == "one of":
            return next(filter(None, (list(self.made_by(Value(sort=s), method)) for s in sort[1])), [])
        if sort[0] == "wrap":
            op = known.HIDDEN.get(sort[1], {}).get(method)
            return (Effect(op, "", (), sort[1].partition(" ")[0]),) if op else ()
        if sort[0] == "param":
            return (Effect("call", "", (), "", sort[1], method),)
        if sort[0] == "out":
            is_told = method == "backward" and sort[1] != "replica"
            return (Effect("backward", "", (), sort[1].partition(" ")[0]),) if is_told else ()
        if sort[0] == "of":
            return (Effect("call", "", (), "", sort[1], method),) if method == "backward" else ()
        if sort[0] in ("fn", "bound") and method == "()":
            return [e for e in self.summary(sort[1], sort[2]).effects if e.param < 0]
        if sort[0] == "obj":
            for name in ("__call__", "forward") if method == "()" else (method,):
                target = self.project.method(sort[1], sort[2], name)
                if target is not None:
                    return [e for e in self.summary(*target).effects if e.param < 0]
        return ()

    def raised_by(self, v: Value, method: str) -> set[Raised]:
        """What a method of an object raises by what differs, whoever calls it."""
        target = self.project.method(v.sort[1], v.sort[2], method) if v.kind == "obj" else None
        return {r for r in self.summary(*target).raises if not r[2]} if target is not None else set()

    def wrapper_of(self, file: int, name: str) -> Value | None:
        """The wrapped module that a function of this file keeps under this name."""
        self._asked(file, "wrapped", name)
        return self.wrapped.get((file, name))

    def given_to(self, file: int, cls: str, parameter: int) -> Value | None:
        """The wrapped module or the group with which objects of a class are made."""
        self._asked(file, "built", cls)
        given = self.built.get((file, cls), {}).get(parameter)
        self.answered.setdefault((file, cls), {})[parameter] = given
        return given

    def note_constructor(self, sort: tuple[Any, ...], names: Sequence[str], given: Given) -> None:
        """With what an object is made."""
        for i, (_, v) in given.items():
            if v.kind in ("wrap", "group"):
                self.built.setdefault((sort[1], sort[2]), {})[i] = Value(sort=v.sort)
            elif v.sort == sorts.DRAWS or (is_own_seed(v) and i < len(names) and "seed" in names[i]):
                self.built.setdefault((sort[1], sort[2]), {})[i] = Value(v.dep & (RANK | LOCAL), sort=v.sort)
            elif v.sort == sorts.OWN_PATH or (v.sort is None and v.dep & DIFFERS == LOCAL):
                self.built.setdefault((sort[1], sort[2]), {})[i] = Value(v.dep & LOCAL, sort=v.sort)
            elif v.kind in ("obj", "one of"):
                given_so_far = self.built.setdefault((sort[1], sort[2]), {})
                given_so_far[i] = either(given_so_far.get(i, Value(sort=v.sort)), Value(sort=v.sort))
