import torch
import torch.distributed as dist


class Checkpointer:
    def __init__(self, recoverables, folder):
        self.recoverables = recoverables
        self.folder = folder

    def save_and_keep_only(self):
        if dist.get_rank() == 0:
            torch.save({k: v.state_dict() for k, v in self.recoverables.items()}, f"{self.folder}/ckpt.pt")
        dist.barrier()
