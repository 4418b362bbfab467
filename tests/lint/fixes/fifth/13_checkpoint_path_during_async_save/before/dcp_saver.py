import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from checkpoint_manager import CheckpointManager


class BaseCheckpointer:
    def __init__(self, dirpath, every_n_steps, process_group=None):
        self.manager = CheckpointManager(dirpath)
        self.every_n_steps = every_n_steps
        self.process_group = process_group or dist.new_group(backend="gloo")

    def _generate_path(self, epoch, step, metric):
        return self.manager.generate_path(epoch, step, metric, self.process_group)

    def _exists(self, path):
        return self.manager.exists(path, self.process_group)

    def on_train_step_end(self, unit):
        step = unit.num_steps_completed
        if step % self.every_n_steps != 0:
            return False
        path = self._generate_path(unit.epoch, step, unit.tracked_metric())
        if self._exists(path):
            return False
        self._save(path, unit.app_state())
        self.manager.append(path)
        return True


class DCPSaver(BaseCheckpointer):
    _future = None

    def _wait(self):
        if self._future is not None:
            self._future.result()
            self._future = None

    def _exists(self, path):
        self._wait()
        return super()._exists(path)

    def _save(self, path, state):
        self._future = dcp.async_save(state, checkpoint_id=path, process_group=self.process_group)

    def on_train_end(self, unit):
        self._wait()
