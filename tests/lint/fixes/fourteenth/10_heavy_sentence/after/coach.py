import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Coach:
    def __init__(self, model, criterion, device):
        self.device = device
        self.model = DDP(model.to(device), device_ids=[device.index])
        self.criterion = criterion
        self.opt = torch.optim.Adam(self.model.parameters(), lr=5e-4)
        self.updates = 0
        self.world = dist.get_world_size()

    def _move(self, sample):
        return {k: v.to(self.device) for k, v in sample.items()}

    def train_step(self, samples, raise_oom=False):
        self.model.train()
        self.opt.zero_grad()
        total, tokens, ooms = 0.0, 0, 0
        for sample in samples:
            try:
                loss, size = self.criterion(self.model, self._move(sample))
                loss.backward()
                total += loss.item()
                tokens += size
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                if raise_oom or self.world > 1:
                    raise
                print(f"rank {dist.get_rank()}: out of memory, skipping one sample")
                ooms += 1
                self.opt.zero_grad()
                torch.cuda.empty_cache()
                if self.world == 1:
                    return None

        total, tokens, ooms = self._sum_over_ranks(total, tokens, ooms)
        if ooms == self.world * len(samples):
            print("all ranks ran out of memory, skipping the update")
            self.opt.zero_grad()
            return None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.updates += 1
        return {"loss": total / max(tokens, 1), "ooms": int(ooms)}

    def _sum_over_ranks(self, *values):
        box = torch.tensor(values, dtype=torch.double, device=self.device)
        dist.all_reduce(box)
        return box.tolist()
