import os
import shutil
import signal
import tempfile
import time

import torch
import torch.distributed as dist


class DDPPlugin:
    def __init__(self, cluster, num_nodes):
        self.cluster = cluster
        self.num_nodes = num_nodes
        self.world_size = cluster.world_size()
        self.local_rank = cluster.local_rank()
        self.node_rank = cluster.node_rank()
        self._pids = None
        self._sync_dir = None

    def call_children_scripts(self):
        os.environ["PL_SYNC_TMPDIR"] = self._sync_dir = tempfile.mkdtemp()
        for local_rank in range(1, self.cluster.devices()):
            self.cluster.start(local_rank, env=os.environ.copy())

    def _share_pids(self):
        dist.barrier()
        pids = [None] * self.world_size
        dist.all_gather_object(pids, os.getpid())
        self._pids = pids

    def share_information(self):
        self._share_pids()
        self._sync_dir = os.environ.pop("PL_SYNC_TMPDIR", None)

    def reconciliate_processes(self, trace):
        torch.save(True, os.path.join(self._sync_dir, f"{os.getpid()}.pl"))
        time.sleep(3)
        if len(os.listdir(self._sync_dir)) == self.world_size:
            return
        for pid in self._pids:
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._sync_dir)
        raise RuntimeError(f"exception on one process: {trace}")
