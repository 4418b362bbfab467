import os

import deepspeed
import torch
import torch.distributed as dist

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


class Tuner:
    def __init__(self, model, batches, out, save_steps):
        self.model = model
        self.engine, _, _, _ = deepspeed.initialize(
            model=model,
            model_parameters=[p for p in model.parameters() if p.requires_grad],
            config=DS_CONFIG,
        )
        self.batches = batches
        self.out = out
        self.save_steps = save_steps

    def train(self, steps):
        for step, tokens in zip(range(1, steps + 1), self.batches):
            tokens = tokens.to(self.engine.device)
            logits = self.engine(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            self.engine.backward(loss)
            self.engine.step()
            if step % self.save_steps == 0:
                self.save_checkpoint(step)

    def save_checkpoint(self, step):
        folder = os.path.join(self.out, f"checkpoint-{step}")
        self.save_model(folder)
        self.engine.save_checkpoint(folder)

    def save_model(self, folder):
        self._save(folder)

    def _save(self, folder):
        self.model.save_pretrained(folder, write=dist.get_rank() == 0)
