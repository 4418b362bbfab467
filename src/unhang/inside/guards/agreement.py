"""Two questions to all ranks at once: `assert_same`, is a setting equal everywhere, and `together`, does any rank want to skip, stop or retry."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal

from unhang.errors import RanksDiffer
from unhang.inside.guards import exchange
from unhang.inside.guards.job import Job, here
from unhang.inside.guards.words import Duration, have, log, seconds_of

_TAG = "train_setup"
_LONGEST = 160
_SHOWN = 60
_MOST_VALUES = 8
_NAMESPACES = ("Namespace", "SimpleNamespace")  # their own text keeps the order in which they were filled
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def assert_same(
    name: str, value: object, *, on_differ: Literal["raise", "warn"] = "raise", limit_s: Duration | None = None
) -> bool:
    """Compares a value over all ranks; returns whether it is the same. Rank 0 prints `[train_setup] name = value` if so.

    Numbers, texts, lists, mappings, sets, data classes and paths are compared by content, numpy's scalars too; tensors and
    arrays by shape and dtype, and by value where they have one element and lie in host memory. Of a long content a hash is
    compared and shown. All ranks call it, at any place: no group is needed for it, and a rank that does not call it is named.

    Example:
        import torch
        import unhang

        unhang.assert_same("batch_size", 32)
        if not unhang.assert_same("weights", torch.zeros(4, 2), on_differ="warn"):
            print("the replicas do not have weights of the same shape")

    Blocks: until all ranks have come, up to `limit_s` and five seconds.

    Args:
        name: of the value, in messages.
        value: on this rank.
        on_differ: "raise", or "warn" to say it (rank 0 does) and go on.
        limit_s: for all ranks to come; by default the timeout of the job.

    Raises:
        RanksDiffer: the values differ, or some ranks did not come. The text is the same on all ranks.
        PeerFailed: another rank failed.
        ValueError: `on_differ` is neither of the two.
    """
    if on_differ not in ("raise", "warn"):
        raise ValueError(f"on_differ is {on_differ!r}; it must be 'raise' or 'warn'")
    text = in_text(value)
    mine = here()
    if mine is None:
        log(_TAG, f"{name} = {text}")
        return True
    turn = mine.turn(f"same/{name}")
    wait_s = mine.timeout_s if limit_s is None else seconds_of(limit_s)
    try:
        wrong = exchange.gather(mine, f"same/{name}/{turn}", text, differences, wait_s, f"assert_same({name!r})")
        if wrong:
            raise RanksDiffer(f"{name} differs: {wrong}")
    except RanksDiffer as error:
        if on_differ == "raise":
            raise
        if mine.rank == 0:
            log(_TAG, f"warning: {error}")
        return False
    if mine.rank == 0:
        log(_TAG, f"{name} = {text}")
    return True


def differences(texts: Sequence[str]) -> str:
    """Who has what, by rank, the most common first; empty where all are equal."""
    ordered = exchange.alike(texts)
    if len(ordered) == 1:
        return ""
    parts = [f"{have(ranks)} {text}" for text, ranks in ordered[:_MOST_VALUES]]
    more = f", and {len(ordered) - _MOST_VALUES} more values" if len(ordered) > _MOST_VALUES else ""
    return ", ".join(parts) + more


def in_text(value: object) -> str:
    """A text that is equal for equal values; a long one becomes its beginning and a hash of all."""
    try:
        text = json.dumps(_plain(value), sort_keys=True)
    except Exception:  # noqa: BLE001 - it holds itself, or its own code fails; only its type can be compared
        text = f"<{type(value).__qualname__}>"
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[:_SHOWN]}... ({len(text)} characters, sha256 {digest})"


def _plain(value: object) -> Any:
    """The value in what JSON knows. Never raises for a type that it does not know."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else _key(k): _plain(v) for k, v in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((_plain(item) for item in value), key=_key)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _of_array(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()[:16]}"
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if type(value).__name__ in _NAMESPACES or type(value).__repr__ is object.__repr__:
        inside = getattr(value, "__dict__", None)
        return {type(value).__qualname__: _plain(inside)} if inside else f"<{type(value).__qualname__}>"
    return _ADDRESS.sub("", repr(value))


def _key(value: object) -> str:
    return json.dumps(_plain(value), sort_keys=True)


def _of_array(value: Any) -> Any:
    shape = [int(n) for n in value.shape]
    is_tensor = isinstance(value, sys.modules["torch"].Tensor) if "torch" in sys.modules else False
    is_at_hand = not is_tensor or value.device.type == "cpu"
    if shape == [] and is_at_hand and hasattr(value, "item"):
        return _plain(value.item())
    kind = f"{type(value).__name__} of {value.dtype}, shape {shape}"
    if is_at_hand and all(n == 1 for n in shape):
        kind += f", value {_plain(value.item())!r}"
    return kind


@dataclass(frozen=True)
class Agreement:
    """What all ranks said; the same object on each of them. True where any rank said yes.

    `ranks`: those that said yes.

    Example:
        import unhang

        agreement = unhang.together(True, name="stop")
        assert agreement and agreement.any and agreement.all
        assert agreement.ranks == tuple(range(agreement.world_size))
    """

    ranks: tuple[int, ...]
    world_size: int

    @property
    def any(self) -> bool:
        """Whether some rank said yes."""
        return bool(self.ranks)

    @property
    def all(self) -> bool:
        """Whether every rank said yes."""
        return len(self.ranks) == self.world_size

    def __bool__(self) -> bool:
        return self.any


def together(condition: object, *, name: str = "", limit_s: Duration | None = None) -> Agreement:
    """Lets every rank know which ranks find `condition` true, so that all take the same branch.

    The safe form of skipping a step, or of try and except around it: a rank that skips alone leaves the others waiting. All
    ranks call it at the same place, in every step, also those for which nothing is wrong.

    It cannot take back what was begun. After an exception in the middle of a step whose collectives some ranks have issued
    already (inside `backward()` of DDP, in a sharded forward), the ranks are at different places, and no question of ours
    gets them together: let the exception end the job. So ask before the first collective of the step.

    Example:
        # Skip a step, before `backward()`, in which any rank has a loss that is not finite.
        import torch
        import unhang

        model = torch.nn.Linear(2, 1)
        for batch in torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [3.0, 4.0]]):
            loss = model(batch).sum()
            if unhang.together(not torch.isfinite(loss), name="loss is not finite"):
                continue
            loss.backward()

    Example:
        # Try again with half the batch, on all ranks, after one of them ran out of memory in the forward.
        import torch
        import unhang

        model, batch = torch.nn.Linear(2, 1), torch.ones(8, 2)
        while len(batch):
            loss = None
            try:
                loss = model(batch).sum()
            except torch.OutOfMemoryError:
                pass
            if not unhang.together(loss is None, name="out of memory"):
                loss.backward()
                break
            batch = batch[: len(batch) // 2]

    Blocks: until all ranks have come, up to `limit_s`; about 0.3 ms where they come at the same time. A condition on a device
    is waited for.

    Args:
        condition: anything that is true or false, a tensor with one element too.
        name: for messages.
        limit_s: for the other ranks to come; by default the timeout of the job.

    Raises:
        RanksDiffer: some ranks did not come, or came to another place; both are named.
        PeerFailed: another rank failed.
    """
    says_yes = bool(condition)
    mine = here()
    if mine is None:
        return Agreement((0,) if says_yes else (), 1)
    return _agreed(mine, says_yes, name, mine.timeout_s if limit_s is None else seconds_of(limit_s))


def _agreed(mine: Job, says_yes: bool, name: str, wait_s: float) -> Agreement:
    words = f"together(name={name!r})" if name else "together()"
    row = (exchange.number_of(mine, "call", words), mine.turn(f"together/{name}"), 0, int(says_yes), exchange.UNKNOWN)
    asked = exchange.start(mine, row, wait_s, words)
    asked.wait(wait_s, words)
    apart = "" if asked.is_alike() else asked.places()
    if apart:
        raise RanksDiffer(apart)
    agreement = Agreement(tuple(rank for rank, sent in enumerate(asked.rows()) if sent[3]), mine.world_size)
    asked.free()
    return agreement
