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
        for local_rank in range(1, self.cluster.devices()):
            self.cluster.start(local_rank, env=os.environ.copy())

    def _share_pids(self):
        dist.barrier()
        pids = [None] * self.world_size
        dist.all_gather_object(pids, os.getpid())
        self._pids = pids

    def share_information(self):
        self._share_pids()
        if self.local_rank == 0:
            self._sync_dir = tempfile.mkdtemp()
        dirs = []
        per_node = self.world_size // self.num_nodes
        for node in range(self.num_nodes):
            box = [self._sync_dir]
            dist.broadcast_object_list(box, src=node * per_node)
            dirs.append(box[0])
        self._sync_dir = dirs[self.node_rank]

    def reconciliate_processes(self, trace):
        torch.save(True, os.path.join(self._sync_dir, f"{os.getpid()}.pl"))
        time.sleep(3)
        if len(os.listdir(self._sync_dir)) == self.world_size // self.num_nodes:
            return
        for pid in self._pids:
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._sync_dir)
        raise RuntimeError(f"exception on one process: {trace}")
