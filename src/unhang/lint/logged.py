"""What a trainer of Lightning keeps of what modules log: a value of this rank, unless it is reduced as it is logged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unhang.lint import known
from unhang.lint.ir import Call, Const, Expr, Op, Ref, calls_in
from unhang.lint.special import name_of
from unhang.lint.values import LOSS, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators
    from unhang.lint.project import Project

_KEPT = ("callback_metrics", "logged_metrics")
_OF_RANKS = ("ddp", "fsdp", "deepspeed")


def own_metric(frame: Operators, base: Expr, key: Expr) -> Value | None:
    """`trainer.callback_metrics[key]`, where all who log it leave it as each rank has computed it; None: it is something else."""
    if not isinstance(base, Ref) or base.path.rpartition(".")[2] not in _KEPT:
        return None
    project, keys = frame.link.project, _keys_of(frame, key)
    logs = [own for word in keys for own in _logs(project, word)]
    return Value(LOSS) if logs and all(logs) and _is_for_ranks(project) else None


def _keys_of(frame: Operators, key: Expr) -> list[str]:
    """The words that a key may be: a text, or what objects of this class are made with; none: nobody knows."""
    const = frame.value(key).const
    if isinstance(const, str):
        return [const]
    project, cls = frame.link.project, frame.function.owner
    at = project.method(frame.file, cls, "__init__") if cls else None
    if at is None or not isinstance(key, Ref) or not key.path.startswith("self."):
        return []
    made = project.function(*at)
    bound = [v for n in made.bindings for t, v in n.pairs() if t == key]
    if len(bound) != 1 or not isinstance(bound[0], Ref) or bound[0].path not in made.parameters:
        return []
    i, name = made.parameters.index(bound[0].path), bound[0].path
    calls = [n for _, f in project.callers_by_name(cls) for n in calls_in(f.body) if name_of(n) == cls]
    given = [n.given(name, i - 1) or made.default_of(i) for n in calls]
    words = [e.value for e in given if isinstance(e, Const) and isinstance(e.value, str)]
    return words if len(words) == len(given) else []


def _logs(project: Project, word: str) -> Iterator[bool]:
    """For each line that logs something under a word, whether each rank keeps its own value."""
    for verb in ("log", "log_dict"):
        for (file, _), f in project.callers_by_name(verb):
            meets = not known.MEETS.isdisjoint(f.words)
            meets |= any(n.startswith("torchmetrics") for n in project.files[file].names.values())
            for n in calls_in(f.body):
                if name_of(n) == verb and _has_word(n, word):
                    is_told = n.given("sync_dist") not in (None, Const(False)) or "rank_zero_only" in n.names
                    yield not (meets or is_told or "" in n.names)


def _has_word(node: Call, word: str) -> bool:
    match node.args[:1]:
        case [Const(value=value)]:
            return bool(value == word)
        case [Op(op="dict", parts=parts)]:
            return Const(word) in parts[: len(parts) // 2]
    return name_of(node) == "log_dict"  # nobody knows what is in it


def _is_for_ranks(project: Project) -> bool:
    """Whether a trainer is made for several ranks."""
    for _, f in project.callers_by_name("Trainer"):
        for n in calls_in(f.body):
            match n.given("strategy") if name_of(n) == "Trainer" else None:
                case Const(value=str() as strategy):
                    if strategy.startswith(_OF_RANKS):
                        return True
                case Call() as made:
                    if name_of(made).lower().startswith(_OF_RANKS):
                        return True
    return False
