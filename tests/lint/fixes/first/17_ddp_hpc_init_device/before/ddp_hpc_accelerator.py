import logging

import torch
import torch.distributed as torch_distrib
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger(__name__)


class DDPHPCAccelerator:
    def __init__(self, trainer, cluster_environment):
        self.trainer = trainer
        self.cluster_environment = cluster_environment
        self.task_idx = cluster_environment.local_rank()

    def train(self):
        return self.ddp_train(process_idx=self.task_idx, model=self.trainer.model)

    def set_world_ranks(self, process_idx):
        self.trainer.local_rank = process_idx
        self.trainer.global_rank = self.trainer.node_rank * self.trainer.num_processes + process_idx
        self.trainer.world_size = self.trainer.num_nodes * self.trainer.num_processes

    def init_device(self, process_idx):
        self.trainer.root_gpu = process_idx
        torch.cuda.set_device(self.trainer.root_gpu)

    def model_to_device(self, model):
        model.cuda(self.trainer.root_gpu)

    def barrier(self):
        if torch_distrib.is_initialized():
            torch_distrib.barrier()

    def init_ddp_connection(self, global_rank, world_size):
        if not torch_distrib.is_initialized():
            log.info(f"initializing ddp: GLOBAL_RANK: {global_rank}, MEMBER: {global_rank + 1}/{world_size}")
            torch_distrib.init_process_group("nccl", rank=global_rank, world_size=world_size)

    def ddp_train(self, process_idx, model):
        self.set_world_ranks(process_idx)

        if self.trainer.global_rank != 0 and self.trainer.progress_bar_callback is not None:
            self.trainer.progress_bar_callback.disable()

        model.trainer = self.trainer
        self.init_ddp_connection(self.trainer.global_rank, self.trainer.world_size)
        self.trainer.call_setup_hook(model)
        self.barrier()

        self.model_to_device(model)
        self.trainer.setup_optimizers(model)
        model = DistributedDataParallel(model, device_ids=[self.trainer.root_gpu])
        self.trainer.train_loop.setup_training(model)
        results = self.trainer.train_loop.run()
        self.barrier()
        return results
