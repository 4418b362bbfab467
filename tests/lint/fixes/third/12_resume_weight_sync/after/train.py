import time
from pathlib import Path

import torch


class Trainer:
    def __init__(self, cfg, model, optimizer, ckpt, broadcaster, packer):
        self.cfg, self.model, self.optimizer = cfg, model, optimizer
        self.ckpt, self.broadcaster, self.packer = ckpt, broadcaster, packer
        self.step = 0

    def wait_for_batch(self):
        path = Path(self.cfg.output_dir) / "rollouts" / f"step_{self.step}"
        while not (path / "READY").exists():
            time.sleep(0.5)
        return torch.load(path / "batch.pt")

    def train(self):
        if self.cfg.resume_step is not None:
            self.ckpt.load(self.model, self.optimizer, self.cfg.resume_step)
            self.step = self.cfg.resume_step
        first = True
        while self.step < self.cfg.max_steps:
            if first:
                self.broadcaster.broadcast_weights(self.model, self.step)
                first = False
            self.step += 1
            batch = self.wait_for_batch()
            loss = self.model(**batch).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.broadcaster.broadcast_weights(self.model, self.step)


class Orchestrator:
    def __init__(self, cfg, engines, receiver):
        self.cfg, self.engines, self.receiver = cfg, engines, receiver

    def start(self):
        self.engines.pause()
        self.receiver.receive_weights(version=self.cfg.resume_step or 0)
        self.engines.resume()
