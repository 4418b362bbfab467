import time

import torch
import torch.distributed as dist
from transformers import TrainerCallback


class StopAfterSeconds(TrainerCallback):
    def __init__(self, stop_after_seconds):
        self.stop_after_seconds = stop_after_seconds
        self._started = None

    def on_train_begin(self, args, state, control, **kwargs):
        self._started = time.time()

    def on_step_end(self, args, state, control, **kwargs):
        is_over = self.stop_after_seconds > 0 and time.time() - self._started >= self.stop_after_seconds
        if dist.is_initialized() and dist.get_world_size() > 1:
            flag = torch.tensor([int(is_over)], device=args.device)
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
            is_over = bool(flag.item())
        if is_over:
            control.should_training_stop = True
        return control
