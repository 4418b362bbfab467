"""What all integrations do in a training: recorder, step marks, word to the other ranks of a failure, and checks."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from unhang.errors import PeerFailed
from unhang.inside.guards import job
from unhang.inside.guards.heartbeat import Heartbeat, heartbeat
from unhang.inside.guards.installing import install
from unhang.inside.guards.learning import check_learning
from unhang.inside.guards.peers import Peers
from unhang.inside.guards.replicas import check_replicas
from unhang.inside.guards.words import in_words, log
from unhang.inside.recorder import errors_seen

# The thread of `guard.board.Watcher`: where it runs, somebody listens already.
_WATCHER = "unhang-board"
_MOST_LINES = 16


class Training:
    """The guards around a training loop that is not ours: `begin`, `step` after each step, `end`, or `failed`.

    No method raises. The recorder starts at once, so make this object before the process group is made. From `begin`
    on, an exception that leaves the program, or is given to `failed`, becomes known to the other ranks, which then stop within
    seconds and say which rank failed and why; under `unhang.process_group` that is left to it.

    Example: a plain loop, in a process group of any origin.
        ```python
        from unhang.integrations import Training

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Training("unhang-reports/mine", heartbeat_every=2) as training:
            training.begin(model, optimizer)
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(3, 2)).sum().backward()
                optimizer.step()
                training.step()
        assert training.steps == 4
        ```

    Args:
        report_dir: as for `unhang.install`.
        heartbeat_every: steps between two lines on how far the ranks are; 0 for none.
        learning_within: steps after which to judge whether the model learns; 0 for never.
        replicas_every: steps between comparisons of the replicas, bit for bit; 0 for none. Then all ranks call `begin`.
    """

    def __init__(
        self,
        report_dir: str | os.PathLike[str] | None = None,
        *,
        heartbeat_every: int = 50,
        learning_within: int = 20,
        replicas_every: int = 0,
    ) -> None:
        self.report_dir = install(report_dir)
        self.steps = 0
        self._every, self._within, self._replicas = heartbeat_every, learning_within, replicas_every
        self._heartbeat: Heartbeat | None = None
        self._peers: Peers | None = None
        self._undo: list[Callable[[], None]] = []

    def begin(self, model: Any = None, optimizer: Any = None, scaler: Any = None) -> None:
        """The training begins: the process group is there, if there is to be one. Ends what an earlier `begin` began.

        Args:
            model: for the checks of learning and replicas; they are left out without it, and without `optimizer`.
            optimizer: one of torch, or a list.
            scaler: the GradScaler, if there is one.

        Blocks: with `replicas_every`, until all ranks have come, up to 30 s; else never.
        """
        self.end()
        self.steps = 0
        _safely("word to the other ranks", self._join)
        if self._every:
            self._heartbeat = _safely("heartbeat", lambda: heartbeat(self._every))
        if model is None or optimizer is None:
            return
        if self._within:
            learning = _safely("check of learning", lambda: check_learning(model, optimizer, scaler, self._within))
            self._at_end("check of learning", learning)
        if self._replicas and _is_initialized():
            first = optimizer[0] if isinstance(optimizer, (list, tuple)) else optimizer
            replicas = _safely("replicas", lambda: check_replicas(model, self._replicas, optimizer=first))
            self._at_end("replicas", replicas)

    def _at_end(self, what: str, check: Any) -> None:
        if check is not None:
            self._undo.append(functools.partial(_safely, what, check.close))

    def _join(self) -> None:
        """Listens to the other ranks, and has them hear of an exception that nobody catches."""
        if not _is_initialized():
            return
        mine = job.current()
        if mine.world_size < 2 or any(t.name == _WATCHER and t.is_alive() for t in threading.enumerate()):
            return
        self._peers = Peers(mine)
        self._peers.watch()
        self._undo.append(_on_uncaught(self.failed))

    def step(self, **info: float | str) -> None:
        """A step has ended; `info` appears in the heartbeat's lines. About a microsecond; never waits."""
        self.steps += 1
        if self._heartbeat is not None:
            self._heartbeat.step(**info)

    def count_steps_of(self, optimizer: Any) -> None:
        """Has each step of an optimizer of torch count as a step of the training."""

        def after_step(*_: object) -> None:
            _safely("step mark", self.step)

        handle = _safely("step marks", lambda: optimizer.register_step_post_hook(after_step))
        if handle is not None:
            self._undo.append(handle.remove)

    def failed(self, error: BaseException) -> None:
        """The training ends with an exception: reports it to the other ranks, or says which of them has failed before.

        Blocks: up to six seconds, where the store does not answer.
        """
        # Whoever catches the error now, it has ended the training.
        _safely("error.json", lambda: _recorder().record(error, threading.current_thread().name))
        peers, self._peers = self._peers, None
        if peers is not None and not isinstance(error, KeyboardInterrupt):
            _safely("word to the other ranks", lambda: _announce(peers, error))
        if peers is not None:
            peers.over()
        self.end()

    def end(self) -> None:
        """The training is over, well or not; may be called again. Blocks for less than three seconds."""
        beats, self._heartbeat = self._heartbeat, None
        if beats is not None:
            _safely("heartbeat", beats.close)
        peers, self._peers = self._peers, None
        if peers is not None:
            _safely("word to the other ranks", peers.over)
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.end()
        else:
            self.failed(error)


def _announce(peers: Peers, error: BaseException) -> None:
    try:
        peers.failed(error)
    except PeerFailed as cause:
        first, *lines = str(cause).splitlines()
        shown = lines if len(lines) <= _MOST_LINES else ["  ...", *lines[-_MOST_LINES:]]
        log("unhang", "\n".join([f"{type(error).__name__} here is a consequence: {first}", *shown]))


def _recorder() -> Any:
    """The recorder that runs: under `unhang run` it is loaded under a name of its own, before this package."""
    return sys.modules.get("_unhang_inside.recorder.errors_seen", errors_seen)


def _is_initialized() -> bool:
    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())


def _on_uncaught(act: Callable[[BaseException], None]) -> Callable[[], None]:
    """Has `act` see the exception that nobody catches, before it is shown; returns what takes that back."""
    is_on = [True]
    before = sys.excepthook

    @functools.wraps(before)
    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        if is_on[0]:
            _safely("word to the other ranks", lambda: act(error))
        return before(kind, error, trace)

    def undo() -> None:
        is_on[0] = False
        if sys.excepthook is excepthook:
            sys.excepthook = before

    sys.excepthook = excepthook
    return undo


def _safely(what: str, work: Callable[[], Any]) -> Any:
    """What `work` returns; where it fails, a line instead, and None: it must not reach the training."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001
        log("unhang", f"{what}: {in_words(error)}")
        return None
