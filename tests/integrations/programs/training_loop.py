"""Two ranks with DDP. `KIND` says whose loop; with `fault`, rank 1 raises before its third step, where rank 0 waits for it.

A thread keeps the failed process alive, as a logger's or an uploader's does, so that no launcher sees that it failed.
"""

import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

FOLDER, KIND, FAULT, GUARD = sys.argv[1:5]
SETTINGS: dict[str, Any] = {"report_dir": FOLDER, "heartbeat_every": 2, "replicas_every": 2}
RANK = int(os.environ["RANK"])
LIMIT = timedelta(seconds=10)


def maybe_fail(step: int) -> None:
    """The fault."""
    if FAULT == "fault" and step == 2 and RANK == 1:
        threading.Thread(target=time.sleep, args=(40,)).start()
        raise ValueError("a broken sample")


def report(training: Any) -> None:
    """What the test reads."""
    print(f"rank {RANK}: {training.steps} steps", flush=True)


class Samples(torch.utils.data.Dataset[Any]):
    """Six for each rank."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2) * index


def plain() -> None:
    from unhang.integrations import Training

    training = Training(**SETTINGS)
    dist.init_process_group("gloo", timeout=LIMIT)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with training:
        if GUARD == "guarded":
            training.begin(model, optimizer)
        for step in range(6):
            maybe_fail(step)
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            training.step(loss=0.5)
    report(training)
    del model
    dist.destroy_process_group()


def lightning() -> None:
    import lightning.pytorch as pl

    from unhang.integrations import LightningCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            maybe_fail(index)
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = LightningCallback(**SETTINGS)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=pl.strategies.DDPStrategy(process_group_backend="gloo", timeout=LIMIT),
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[callback] if GUARD == "guarded" else [],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Samples(), batch_size=1))
    report(callback.training)
    if dist.is_initialized():
        dist.destroy_process_group()


def transformers() -> None:
    from transformers import Trainer, TrainingArguments

    from unhang.integrations import TransformersCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = torch.nn.Linear(2, 1), 0

        def forward(self, x: Any) -> Any:
            maybe_fail(self.calls)
            self.calls += 1
            return {"loss": self.layer(x).sum()}

    class Dictionaries(Samples):
        def __getitem__(self, index: int) -> Any:
            return {"x": torch.ones(2)}

    callback = TransformersCallback(**SETTINGS)
    arguments = TrainingArguments(
        output_dir=FOLDER + "/out", use_cpu=True, ddp_backend="gloo", ddp_timeout=10, report_to=[], save_strategy="no",
        disable_tqdm=True, per_device_train_batch_size=1, num_train_epochs=1,
    )  # fmt: skip
    trainer = Trainer(
        Model(), arguments, train_dataset=Dictionaries(), callbacks=[callback] if GUARD == "guarded" else []
    )
    trainer.train()
    report(callback.training)


def accelerate() -> None:
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    from unhang.integrations import watch_accelerator

    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo", timeout=LIMIT)])
    model: Any = torch.nn.Linear(2, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = torch.utils.data.DataLoader(Samples(), batch_size=1)
    training = watch_accelerator(accelerator, **SETTINGS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        maybe_fail(step)
        optimizer.zero_grad()
        accelerator.backward(model(batch).sum())
        optimizer.step()
    report(training)
    accelerator.end_training()


def deepspeed() -> None:
    import deepspeed as library

    from unhang.integrations import deepspeed_initialize

    # Else it compiles a kernel for half a minute first.
    library.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    config = {"train_micro_batch_size_per_gpu": 3, "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed_initialize(
        settings=SETTINGS, model=module, optimizer=optimizer, config=config, dist_init_required=True
    )
    for step in range(6):
        maybe_fail(step)
        engine.backward(engine(torch.ones(3, 2)).sum())
        engine.step()
    report(engine.unhang)
    engine.destroy()
    dist.destroy_process_group()


globals()[KIND]()
