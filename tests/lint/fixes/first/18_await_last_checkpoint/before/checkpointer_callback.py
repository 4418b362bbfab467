import logging
import time
from concurrent.futures import Future
from typing import List, Optional

import torch.distributed as dist

log = logging.getLogger(__name__)


def wait_for(condition, description, timeout=10.0):
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout:
            raise TimeoutError(description)
        time.sleep(0.5)


class CheckpointerCallback:
    def __init__(self, trainer, save_interval=250, save_async=True):
        self.trainer = trainer
        self.save_interval = save_interval
        self.save_async = save_async
        self._future: Optional[Future] = None
        self._latest_checkpoint_path = ""
        self._checkpoints: List[str] = []

    def _await_last_checkpoint(self, blocking: bool = True) -> Optional[Future]:
        if (fut := self._future) is not None:
            if blocking or fut.done():
                fut.result()
                if dist.get_rank() == 0:
                    wait_for(
                        lambda: self.trainer.checkpointer.dir_is_checkpoint(self._latest_checkpoint_path),
                        "waiting to finalize checkpoint",
                    )
                dist.barrier()
                self._future = None
                return fut
        return None

    def _save_checkpoint(self) -> str:
        self._await_last_checkpoint()
        if self.save_async:
            path, self._future = self.trainer.save_checkpoint_async()
        else:
            path = self.trainer.save_checkpoint()
        self._latest_checkpoint_path = str(path)
        return str(path)

    def post_train_batch(self):
        self._await_last_checkpoint(blocking=False)
        if self.trainer.global_step % self.save_interval == 0:
            self._checkpoints.append(self._save_checkpoint())

    def post_train(self):
        self._checkpoints.append(self._save_checkpoint())
        self._await_last_checkpoint()
