import torch
from accelerate import Accelerator


class EntropyMasker:
    def __init__(self, accelerator: Accelerator, top_entropy_quantile: float = 0.2):
        self.accelerator = accelerator
        self.top_entropy_quantile = top_entropy_quantile

    def get_high_entropy_mask(self, entropies, mask, threshold):
        """Boolean mask of the tokens whose entropy is above the global quantile."""
        local = entropies[mask.bool()].float()
        pad_value = -1e9
        padded = self.accelerator.pad_across_processes(local, dim=0, pad_index=pad_value)
        gathered = self.accelerator.gather(padded)
        gathered = gathered[gathered != pad_value]
        if gathered.numel() == 0:
            return torch.zeros_like(entropies, dtype=torch.bool)

        entropy_threshold = torch.quantile(gathered, threshold)
        entropy_mask = (entropies * mask.float()) >= entropy_threshold
        return entropy_mask & mask.bool()

    def policy_loss(self, per_token_loss, entropies, completion_mask):
        if self.top_entropy_quantile < 1.0:
            entropy_mask = self.get_high_entropy_mask(
                entropies, completion_mask, 1 - self.top_entropy_quantile
            )
            per_token_loss = per_token_loss * entropy_mask
        return (per_token_loss * completion_mask).sum() / completion_mask.sum().clamp(min=1)
