"""Loaders that a project deals out to its ranks itself: which of them have anything for this rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unhang.lint import known
from unhang.lint.ir import Const, Function, Ref, calls_in, nodes_in
from unhang.lint.samplers import counts_items, is_counted
from unhang.lint.special import name_of

if TYPE_CHECKING:
    from unhang.lint.project import Project

NUMBER = "dataloader_idx"  # the name by which Lightning gives it
_GIVES = ("val_dataloader", "test_dataloader", "predict_dataloader")
_LEAVES_ALONE = ("use_distributed_sampler", "replace_sampler_ddp")


def deals_out(project: Project) -> bool:
    """Whether Lightning is told to leave the loaders alone, and those of an evaluation are made of what the rank says, without padding."""
    trainers = (n for _, f in project.callers_by_name("Trainer") for n in calls_in(f.body) if name_of(n) == "Trainer")
    if not any(n.given(word) == Const(False) for n in trainers for word in _LEAVES_ALONE):
        return False
    makers = [(key, f) for key, f in project.functions.items() if f.name in _GIVES]
    return any(_is_by_rank(project, key[0], list(_with_helpers(project, key[0], f))) for key, f in makers)


def _with_helpers(project: Project, file: int, function: Function) -> Iterator[Function]:
    """A function, and those of its class or file that it calls."""
    yield function
    words = {w.rpartition(".")[2] for w in function.words}
    for f in project.files[file].functions:
        if f.name in words and f is not function and f.inside <= 0 and f.owner in ("", function.owner):
            yield f


def _is_by_rank(project: Project, file: int, functions: list[Function]) -> bool:
    words = {w for f in functions for w in f.words}
    made = (project.symbol_of(file, w) for w in words)
    classes = [s for s in made if s is not None and s.kind == "class"]
    if "DistributedSampler" in words or any(map(counts_items, functions)):
        return False
    if any(
        is_counted(project, s.file, s.name) or any(map(counts_items, project.all_methods(s.file, s.name)))
        for s in classes
    ):
        return False
    paths = (n.path for f in functions for n in nodes_in(f.body) if isinstance(n, Ref))
    return any(known.rank_kind(p.rpartition(".")[2]) == "rank" for p in paths)
