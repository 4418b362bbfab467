"""The guards inside Lightning, Hugging Face Trainer, Accelerate, DeepSpeed and Ray Train; scripts use `unhang.integrations`.

Here is what all integrations do in a training (recorder, step marks, word to the other ranks of a failure, and checks), and the frameworks whose loop
is the script's own. No framework is imported that the script does not use.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
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
from unhang.inside.rank import with_group
from unhang.inside.recorder import errors_seen, facts

# The thread of `guards.ending.Watcher`: where it runs, somebody listens already.
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
        if self._replicas and with_group() is not None:
            first = optimizer[0] if isinstance(optimizer, (list, tuple)) else optimizer
            replicas = _safely("replicas", lambda: check_replicas(model, self._replicas, optimizer=first))
            self._at_end("replicas", replicas)

    def _at_end(self, what: str, check: Any) -> None:
        if check is not None:
            self._undo.append(functools.partial(_safely, what, check.close))

    def _join(self) -> None:
        """Listens to the other ranks, and has them hear of an exception that nobody catches."""
        if with_group() is None:
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


def watch_accelerator(accelerator: Any, **settings: Any) -> Training:
    """Has `accelerator.prepare` begin the guards, and `accelerator.end_training` end them; steps are counted by themselves.

    The Accelerator makes the process group: call `unhang.install()` before it, so that nothing is missed. Use the result in a
    `with` statement around the loop, so that an exception in it becomes known to the other ranks also where somebody catches it.

    Example:
        ```python
        from accelerate import Accelerator
        from unhang.integrations import watch_accelerator

        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch_accelerator(accelerator, report_dir="unhang-reports/accelerate") as training:
            model, optimizer = accelerator.prepare(model, optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                accelerator.backward(model(torch.ones(4, 2)).sum())
                optimizer.step()
        assert training.steps == 3
        ```

    Args:
        accelerator: an `accelerate.Accelerator`.
        settings: those of `Training`.
    """
    training = Training(**settings)
    prepare, end = accelerator.prepare, accelerator.end_training

    @functools.wraps(prepare)
    def prepare_and_begin(*objects: Any, **more: Any) -> Any:
        prepared = prepare(*objects, **more)
        models, optimizers = list(accelerator._models), list(accelerator._optimizers)
        if models and optimizers:
            # Those of torch, which the wrapped ones step: a wrapped one also "steps" where it only accumulates.
            inner = [getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers]
            training.begin(models[0], inner, getattr(accelerator, "scaler", None))
            training.count_steps_of(inner[0])
        return prepared

    @functools.wraps(end)
    def end_both() -> Any:
        training.end()
        return end()

    accelerator.prepare, accelerator.end_training = prepare_and_begin, end_both
    return training


def deepspeed_initialize(*arguments: Any, settings: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """`deepspeed.initialize` with the guards around its engine; returns what that returns.

    `engine.unhang` is the `Training`: use it in a `with` statement around the loop, so that an exception in it becomes known to
    the other ranks also where somebody catches it. Steps of the optimizer are counted, not those that only accumulate.

    Example:
        ```python
        from unhang.integrations import deepspeed_initialize

        model = torch.nn.Linear(2, 1)
        config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine, *_ = deepspeed_initialize(model=model, optimizer=optimizer, config=config)
        with engine.unhang as training:
            for _ in range(3):
                engine.backward(engine(torch.ones(4, 2)).sum())
                engine.step()
        assert training.steps == 3
        ```

    Args:
        arguments: those of `deepspeed.initialize`.
        settings: those of `Training`.
        more: those of `deepspeed.initialize` that have names.
    """
    training = Training(**(settings or {}))
    made = import_module("deepspeed").initialize(*arguments, **more)
    engine = made[0]
    step = engine.step

    @functools.wraps(step)
    def step_and_mark(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = step(*args, **kwargs)
        if engine.global_steps != before:
            training.step()
        return result

    engine.step, engine.unhang = step_and_mark, training
    training.begin(engine.module, getattr(engine, "basic_optimizer", None))
    return made


def ray_train_loop(
    train_loop: Callable[..., Any], report_dir: str | os.PathLike[str] | None = None, **settings: Any
) -> Callable[..., Any]:
    """The training loop for `ray.train.torch.TorchTrainer`, recorded, and with failures known to all workers.

    Ray makes the process group before the loop begins; the recorder catches up with it. Inside the loop
    `unhang.integrations.ray_training()` is the `Training`: call its `step()` after each step, and `begin(model,
    optimizer)` for the checks.

    Example:
        ```python
        from unhang.integrations import ray_training, ray_train_loop

        def train_loop() -> None:
            for _ in range(3):
                ray_training().step()

        loop = ray_train_loop(train_loop, report_dir="unhang-reports/ray")
        # TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
        loop()
        ```

    Args:
        train_loop: with or without a configuration, as Ray takes it.
        report_dir: of all workers, on a disk that all nodes see; by default a new folder below `unhang-reports`, where the
            driver runs.
        settings: the others of `Training`.
    """
    # Here, in the driver: the workers have folders of their own.
    name = time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"
    given = facts.settings_now()
    folder = str(Path(report_dir or os.environ.get("UNHANG_REPORT_DIR") or Path("unhang-reports") / name).absolute())

    def loop(*config: Any) -> Any:
        from unhang.inside import integrations as own

        with Training(folder, **settings) as training:
            own._trainings[:] = [training]
            training.begin()
            facts.note_settings(given)
            return train_loop(*config)

    # Ray counts the parameters of the function to know whether it wants the configuration.
    loop = functools.wraps(train_loop)(loop)
    loop.__signature__ = inspect.signature(train_loop)  # type: ignore[attr-defined]
    return loop


_trainings: list[Training] = []


def ray_training() -> Training:
    """The guards of the training loop that this worker is in.

    Raises:
        RuntimeError: the loop was not wrapped by `ray_train_loop`.
    """
    if not _trainings:
        raise RuntimeError("wrap the training loop: TorchTrainer(ray_train_loop(train_loop), ...)")
    return _trainings[-1]
