import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import nn

from transfer import WeightCourier
from workers import LiveWorker, RecordedWorker


class AsyncTrainer:
    def __init__(self, model, folder, rollout_worker=None, sync_every=4):
        self.accelerator = Accelerator()
        self.opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model, self.opt = self.accelerator.prepare(model, self.opt)
        self.sync_every = sync_every
        self.worker = None
        self.courier = WeightCourier(self.accelerator, folder)
        if self.accelerator.is_main_process:
            if rollout_worker is None:
                self.worker = LiveWorker(folder)
            else:
                self.worker = rollout_worker
                self.courier = None
            self.worker.start()

    def _sync_weights(self):
        if self.courier is None:
            return
        self.courier.send(self.model)

    def _batch(self):
        box = torch.empty(64, 32, device=self.accelerator.device)
        if self.worker is not None:
            box.copy_(self.worker.take())
        return broadcast(box)

    def train(self, steps):
        self._sync_weights()
        for step in range(1, steps + 1):
            loss = self.model(self._batch()).pow(2).mean()
            self.accelerator.backward(loss)
            self.opt.step()
            self.opt.zero_grad()
            if step % self.sync_every == 0:
                self._sync_weights()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--recorded")
    args = parser.parse_args()
    worker = RecordedWorker(args.recorded) if args.recorded else None
    AsyncTrainer(nn.Linear(32, 32), args.folder, worker).train(200)


if __name__ == "__main__":
    main()
