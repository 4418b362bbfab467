from dataclasses import dataclass

import torch


@dataclass
class Sampled:
    ids: torch.Tensor
    mask: torch.Tensor
    prompt_len: int


class EngineRollout:
    def __init__(self, engine, tokenizer, max_new_tokens=512, temperature=1.0):
        self.engine = engine
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature

    def _generation_args(self):
        return dict(
            max_new_tokens=self.max_new_tokens,
            do_sample=True,
            temperature=self.temperature,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=None,
            synced_gpus=False,
        )

    def _response_mask(self, tail):
        is_eos = (tail == self.tokenizer.eos_token_id).long()
        after = is_eos.cumsum(-1) - is_eos
        return after.eq(0).float()

    @torch.no_grad()
    def sample(self, prompts, attention):
        self.engine.eval()
        ids = self.engine.module.generate(prompts, attention_mask=attention, **self._generation_args())
        self.engine.train()
        width = prompts.shape[1]
        return Sampled(ids, self._response_mask(ids[:, width:]), width)
