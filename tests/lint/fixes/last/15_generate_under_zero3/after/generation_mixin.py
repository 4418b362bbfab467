from typing import Optional

import torch
import torch.distributed as dist
from transformers.deepspeed import is_deepspeed_zero3_enabled


class GreedyGenerationMixin:
    @torch.no_grad()
    def generate(self, input_ids, attention_mask=None, max_new_tokens=64, eos_token_id=None,
                 synced_gpus: Optional[bool] = None):
        if synced_gpus is None:
            synced_gpus = is_deepspeed_zero3_enabled() and dist.get_world_size() > 1
        this_peer_finished = False
        unfinished = torch.ones(input_ids.shape[0], dtype=torch.long, device=input_ids.device)
        produced = 0
        while True:
            if synced_gpus:
                flag = torch.tensor(0.0 if this_peer_finished else 1.0, device=input_ids.device)
                dist.all_reduce(flag, op=dist.ReduceOp.SUM)
                if flag.item() == 0.0:
                    break

            logits = self(input_ids=input_ids, attention_mask=attention_mask).logits
            if synced_gpus and this_peer_finished:
                continue

            tokens = logits[:, -1].argmax(-1)
            if eos_token_id is not None:
                tokens = tokens * unfinished + eos_token_id * (1 - unfinished)
                unfinished = unfinished * (tokens != eos_token_id).long()
            input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
            if attention_mask is not None:
                attention_mask = torch.cat([attention_mask, attention_mask.new_ones(len(tokens), 1)], dim=-1)
            produced += 1
            if unfinished.max() == 0 or produced >= max_new_tokens:
                if not synced_gpus:
                    break
                this_peer_finished = True
        return input_ids
