import os

import torch
import torch.distributed as dist


class CheckpointEngine:
    def makedirs(self, path, exist_ok=False):
        os.makedirs(path, exist_ok=exist_ok)

    def save(self, state, path):
        torch.save(state, path)


class Engine:
    def __init__(self, module, optimizer, config):
        self.module = module
        self.optimizer = optimizer
        self.global_steps = 0
        self.global_rank = dist.get_rank()
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.node_local_storage = config.get("use_node_local_storage", False)
        self.checkpoint_engine = CheckpointEngine()

    def save_checkpoint(self, save_dir, tag=None, client_state=None):
        self.checkpoint_engine.makedirs(save_dir, exist_ok=True)
        dist.barrier()

        if tag is None:
            tag = f"global_step{self.global_steps}"
        tag = str(tag)
        self._create_folder(save_dir, tag)
        state = {"optimizer": self.optimizer.state_dict(), "client": client_state or {}}
        name = os.path.join(save_dir, tag, f"zero_pp_rank_{self.global_rank}_optim_states.pt")
        self.checkpoint_engine.save(state, name)
        if self.global_rank == 0:
            self.checkpoint_engine.save(self.module.state_dict(), os.path.join(save_dir, tag, "model.pt"))
            with open(os.path.join(save_dir, "latest"), "w") as f:
                f.write(tag)
        dist.barrier()
        return True

    def _create_folder(self, save_dir, tag):
        if self.global_rank == 0:
            self.checkpoint_engine.makedirs(os.path.join(save_dir, tag), exist_ok=True)
        dist.barrier()
