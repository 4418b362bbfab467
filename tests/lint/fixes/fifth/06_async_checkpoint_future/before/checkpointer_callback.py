import logging
import time

import torch.distributed as dist

log = logging.getLogger(__name__)


def wait_for(condition, description, timeout=120.0):
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout:
            raise TimeoutError(description)
        time.sleep(0.5)


class CheckpointerCallback:
    def __init__(self, trainer, checkpointer, save_interval, keep=3):
        self.trainer = trainer
        self.checkpointer = checkpointer
        self.save_interval = save_interval
        self.keep = keep
        self._future = None
        self._latest_path = ""
        self._paths = []

    def _await_last(self, blocking=True):
        if self._future is not None:
            if blocking or self._future.done():
                result = self._future.result()
                if dist.get_rank() == 0:
                    wait_for(
                        lambda: self.checkpointer.dir_is_checkpoint(self._latest_path),
                        "waiting to finalize checkpoint",
                    )
                dist.barrier()
                self._future = None
                return result
        return None

    def _save(self, step):
        self._await_last()
        path, self._future = self.trainer.save_checkpoint_async(step)
        self._latest_path = str(path)
        self._paths.append(self._latest_path)

    def _remove_old(self):
        while len(self._paths) > self.keep:
            path = self._paths.pop(0)
            if dist.get_rank() == 0:
                self.checkpointer.remove(path)

    def post_train_batch(self, step):
        if step % self.save_interval == 0:
            self._save(step)
        else:
            self._await_last(blocking=False)
        self._remove_old()

    def post_train(self, step):
        self._save(step)
        self._await_last()
