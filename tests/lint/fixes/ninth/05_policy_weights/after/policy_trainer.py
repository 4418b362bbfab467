import json
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin


class PolicyTrainer:
    def __init__(self, cfg, model, optimizer, loader):
        self.cfg = cfg
        plugin = DeepSpeedPlugin(zero_stage=3, gradient_accumulation_steps=cfg.accumulate)
        self.accelerator = Accelerator(deepspeed_plugin=plugin, mixed_precision="bf16")
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.done = 0

    def _save_checkpoint(self):
        folder = os.path.join(self.cfg.output_dir, "checkpoints")
        weights = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, f"steps_{self.done}.pt")
            torch.save(weights, path)
            with open(os.path.join(self.cfg.output_dir, "summary.jsonl"), "a") as f:
                f.write(json.dumps({"steps": self.done}) + "\n")
            self.accelerator.print(f"saved {path}")
        self.accelerator.wait_for_everyone()

    def _finalize(self):
        weights = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            final = os.path.join(self.cfg.output_dir, "final_model")
            os.makedirs(final, exist_ok=True)
            torch.save(weights, os.path.join(final, "weights.pt"))
        self.accelerator.wait_for_everyone()

    def _step(self, batch):
        with self.accelerator.accumulate(self.model):
            loss = self.model(**batch).loss
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def train(self):
        stream = iter(self.loader)
        while self.done < self.cfg.max_steps:
            try:
                batch = next(stream)
            except StopIteration:
                stream = iter(self.loader)
                batch = next(stream)
            loss = self._step(batch)
            if not self.accelerator.sync_gradients:
                continue
            self.done += 1
            if self.done % 20 == 0:
                self.accelerator.print(f"{self.done} {loss.item():.4f}")
            if self.done % self.cfg.save_every == 0:
                self._save_checkpoint()
        self._finalize()
