from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist


@dataclass
class CoachArgs:
    out: str
    steps: int = 2000
    save_every: int = 500
    lr: float = 3e-4

    @property
    def should_save(self):
        return dist.get_rank() == 0


class Coach:
    def __init__(self, model, args, batches):
        self.model = model
        self.args = args
        self.batches = batches
        self.opt = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)

    def train(self):
        for step, tokens in zip(range(1, self.args.steps + 1), self.batches):
            logits = self.model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            if step % self.args.save_every == 0:
                self._save_checkpoint(step)
        self.save_model(self.args.out)

    def _save_checkpoint(self, step):
        folder = Path(self.args.out) / f"checkpoint-{step}"
        self.save_model(folder)
        if self.args.should_save:
            (folder / "step.txt").write_text(str(step))

    def save_model(self, folder):
        self._save(folder)

    def _save(self, folder):
        if self.args.should_save:
            print(f"writing the model to {folder}")
        self.model.save_pretrained(folder, write=self.args.should_save)
