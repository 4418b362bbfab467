from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Answers:
    tokens: torch.Tensor
    mask: torch.Tensor
    reward: torch.Tensor


class Maker:
    def __init__(self, args, actor, rings, device):
        self.args = args
        self.actor = actor
        self.rings = rings
        self.device = device

    @torch.no_grad()
    def answer(self, prompts):
        tokens = prompts.to(self.device)
        for _ in range(self.args.new_tokens):
            chance = self.actor(tokens)[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chance, 1)], 1)
        tokens = tokens.cpu()
        return Answers(tokens, torch.ones_like(tokens), (tokens % 2).float().mean(1))

    def answer_all(self, prompts):
        repeated = prompts.repeat_interleave(self.args.answers_per_prompt, 0)
        size = self.args.micro_batch
        return [self.answer(repeated[i : i + size]) for i in range(0, len(repeated), size)]

    def make(self, prompts):
        args = self.args
        if self.rings.size > 1:
            if self.rings.leads:
                made = self.answer_all(prompts)
                dist.broadcast_object_list(made, src=self.rings.lead, group=self.rings.group)
            else:
                share = args.rollout_batch * args.answers_per_prompt // self.rings.count
                made = [None] * (share // args.micro_batch)
                dist.broadcast_object_list(made, src=self.rings.lead, group=self.rings.group)
        else:
            made = self.answer_all(prompts)
        dist.barrier()
        return made
