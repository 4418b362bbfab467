import torch
from accelerate import Accelerator


class EntropyMasker:
    def __init__(self, accelerator: Accelerator, top_entropy_quantile: float = 0.2):
        self.accelerator = accelerator
        self.top_entropy_quantile = top_entropy_quantile

    def get_high_entropy_mask(self, entropies, mask, threshold):
        """Boolean mask of the tokens whose entropy is above the global quantile."""
        non_pad_entropies = entropies[mask.bool()].float()
        if non_pad_entropies.numel() == 0:
            return torch.zeros_like(entropies, dtype=torch.bool)

        count = torch.tensor([non_pad_entropies.numel()], device=entropies.device)
        longest = self.accelerator.gather(count).max().item()
        padding = torch.zeros(longest - non_pad_entropies.numel(), device=entropies.device)
        padded = torch.cat([non_pad_entropies, padding])
        padded_mask = torch.cat([torch.ones_like(non_pad_entropies), padding])
        all_entropies = self.accelerator.gather(padded)
        all_mask = self.accelerator.gather(padded_mask)

        entropy_threshold = torch.quantile(all_entropies[all_mask.bool()], threshold)
        entropy_mask = (entropies * mask.float()) >= entropy_threshold
        return entropy_mask & mask.bool()

    def policy_loss(self, per_token_loss, entropies, completion_mask):
        if self.top_entropy_quantile < 1.0:
            entropy_mask = self.get_high_entropy_mask(
                entropies, completion_mask, 1 - self.top_entropy_quantile
            )
            per_token_loss = per_token_loss * entropy_mask
        return (per_token_loss * completion_mask).sum() / completion_mask.sum().clamp(min=1)
