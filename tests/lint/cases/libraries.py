"""What other libraries have for all ranks."""

import deepspeed
import torch.distributed as dist
import torchmetrics
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import Trainer

accelerator = Accelerator()


def prepares():
    if accelerator.is_main_process:
        accelerator.wait_for_everyone()  # LNT101


def saves(model, trainer: Trainer):
    if dist.get_rank() == 0:
        get_model_state_dict(model)  # LNT101


def saves_its_optimizer(model, optimizer):
    if dist.get_rank() == 0:
        FSDP.optim_state_dict(model, optimizer)  # LNT101


def gathers(model):
    if dist.get_rank() == 0:
        with deepspeed.zero.GatheredParameters(model.parameters()):  # LNT101
            model.save()


def evaluates(args):
    trainer = Trainer(args=args)
    if trainer.is_world_process_zero():
        trainer.evaluate()  # LNT103


class Module:
    def __init__(self):
        self.accuracy = torchmetrics.Accuracy(task="binary")
        self.own = torchmetrics.Accuracy(task="binary", sync_on_compute=False)

    def at_the_end(self):
        if self.trainer.is_global_zero:
            print(self.own.compute())
            print(self.accuracy.compute())  # LNT103


def scores(keeps_to_itself):
    own = torchmetrics.F1Score(task="binary", sync_on_compute=False)
    if keeps_to_itself:
        alone = {"sync_on_compute": False}
        several = {name: torchmetrics.MeanMetric(sync_on_compute=False) for name in ("x", "y")}
        if torchmetrics.MetricCollection(several).compute() or dist.get_rank() > 0:
            return torchmetrics.MetricCollection([torchmetrics.F1Score(task="binary", **alone)])
        return torchmetrics.MetricCollection(
            {"f1": own, "auroc": torchmetrics.AUROC(task="binary", sync_on_compute=False)}
        )
    return own.clone()


def several(alone, loader):
    mixed = torchmetrics.MetricCollection(
        [torchmetrics.F1Score(task="binary", sync_on_compute=False), torchmetrics.AUROC("binary")]
    )
    if dist.get_rank() == 0:
        print(scores(alone).compute())
        print(mixed.clone(prefix="val_").compute())  # LNT103


def splits(prompts, pipe):
    with PartialState().split_between_processes(prompts) as mine:
        for prompt in mine:
            gather_object([pipe(prompt)])  # LNT110


def splits_evenly(prompts, pipe):
    with PartialState().split_between_processes(prompts, apply_padding=True) as mine:
        for prompt in mine:
            gather_object([pipe(prompt)])


def generates(model, loader):
    for batch in loader:
        texts = model.generate(batch["input_ids"])
        accelerator.gather(texts)  # LNT303


def pads(model, loader):
    for batch in loader:
        texts = accelerator.pad_across_processes(model.generate(batch["input_ids"]), dim=1)
        accelerator.gather(texts)


class Step:
    def run(self):
        if self.is_leader:
            self.end()  # LNT101

    def end(self):
        raise NotImplementedError


class Barrier(Step):
    def end(self):
        dist.barrier()


def waits(step: Step):
    step.run()
