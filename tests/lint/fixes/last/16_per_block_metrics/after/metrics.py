import torch
import torch.distributed as dist


class RMSEAccumulator:
    """Root mean square errors per target and per block."""

    def __init__(self, separate_blocks=False):
        self.separate_blocks = separate_blocks
        self.information = {}

    def update(self, predictions, targets):
        for name, target in targets.items():
            for key, block in target.items():
                full_key = f"{name} ({key})" if self.separate_blocks else name
                if full_key not in self.information:
                    self.information[full_key] = [0.0, 0]
                error = (predictions[name][key] - block).pow(2).sum().item()
                self.information[full_key][0] += error
                self.information[full_key][1] += block.numel()

    def finalize(self, not_per_atom=(), is_distributed=False, device=None):
        if is_distributed:
            all_keys = [None] * dist.get_world_size()
            dist.all_gather_object(all_keys, list(self.information))
            for key in sorted(set().union(*all_keys)):
                value = self.information.get(key, [0.0, 0])
                sse = torch.tensor(value[0], device=device)
                n_elems = torch.tensor(value[1], device=device)
                dist.all_reduce(sse)
                dist.all_reduce(n_elems)
                self.information[key] = [sse.item(), n_elems.item()]

        final = {}
        for key, (sse, n_elems) in self.information.items():
            suffix = "" if key in not_per_atom else " (per atom)"
            final[f"{key}{suffix} RMSE"] = (sse / n_elems) ** 0.5
        return final
