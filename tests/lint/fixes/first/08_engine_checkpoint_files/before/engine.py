import logging
import os

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


class DeepSpeedLight:
    def __init__(self, module, optimizer, zero_stage=0):
        self.module = module
        self.optimizer = optimizer
        self.global_rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.save_non_zero_checkpoint = self.global_rank == 0
        self.save_zero_checkpoint = zero_stage > 0

    def _ckpt_name(self, save_dir, tag):
        return os.path.join(save_dir, str(tag), "mp_rank_00_model_states.pt")

    def _zero_ckpt_name(self, save_dir, tag):
        return os.path.join(save_dir, str(tag), f"zero_pp_rank_{self.global_rank}_optim_states.pt")

    def save_checkpoint(self, save_dir, tag, client_state=None):
        self._create_checkpoint_files(save_dir, tag)
        if self.save_non_zero_checkpoint:
            state = {"module": self.module.state_dict(), **(client_state or {})}
            torch.save(state, self._ckpt_name(save_dir, tag))
        if self.save_zero_checkpoint:
            torch.save(self.optimizer.state_dict(), self._zero_ckpt_name(save_dir, tag))
        return True

    def _create_checkpoint_files(self, save_dir, tag):
        for rank in range(self.world_size):
            if rank == self.global_rank:
                try:
                    if self.save_non_zero_checkpoint:
                        os.makedirs(os.path.dirname(self._ckpt_name(save_dir, tag)), exist_ok=True)
                    if self.save_zero_checkpoint:
                        os.makedirs(os.path.dirname(self._zero_ckpt_name(save_dir, tag)), exist_ok=True)
                except OSError:
                    logger.error(f"Failed saving checkpoint to {save_dir} with tag {tag}")
                    return False
            dist.barrier()
