import time

from transformers import TrainerCallback


class StopAfterSeconds(TrainerCallback):
    def __init__(self, stop_after_seconds):
        self.stop_after_seconds = stop_after_seconds
        self._started = None

    def on_train_begin(self, args, state, control, **kwargs):
        self._started = time.time()

    def on_step_end(self, args, state, control, **kwargs):
        if self.stop_after_seconds > 0 and time.time() - self._started >= self.stop_after_seconds:
            control.should_training_stop = True
        return control
