import torch.distributed.checkpoint as dcp


class BackgroundSaver:
    def __init__(self, mode="async"):
        self.mode = mode
        self._future = None

    def save(self, state, path, process_group=None):
        self.wait()
        if self.mode == "sync":
            dcp.save(state, checkpoint_id=path, process_group=process_group)
            return
        self._future = dcp.async_save(state, checkpoint_id=path, process_group=process_group)

    def wait(self):
        if self._future is not None:
            self._future.result()
            self._future = None
