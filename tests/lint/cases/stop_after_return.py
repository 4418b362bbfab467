"""A flag that stops the trainer, set by the ranks that have not returned; and a callback's own function, which runs what it is given."""

import time

import torch
import torch.distributed as dist
from transformers import TrainerCallback


class StopsAlone(TrainerCallback):
    def __init__(self, target):
        self.target = target

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if not state.is_world_process_zero or "eval_accuracy" not in metrics:
            return control
        if metrics["eval_accuracy"] >= self.target:
            control.should_training_stop = True  # LNT108
        return control


class StopsTogether(TrainerCallback):
    def __init__(self, target):
        self.target = target

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if metrics is None or "eval_accuracy" not in metrics:
            return control
        if metrics["eval_accuracy"] >= self.target:
            control.should_training_stop = True
        return control


class Scores(TrainerCallback):
    @torch.no_grad()
    def score(self, model):
        time.sleep(0.01)
        return model.generate(torch.zeros(3))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        bare = getattr(model, "module", model)
        if state.is_world_process_zero:
            print(self.score(bare))
        dist.barrier()


class ScoresWrapped(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            print(self.texts(model))  # LNT103

    def texts(self, model):
        return model.generate(torch.zeros(3))
