import os

import torch
from accelerate import PartialState
from torch.distributed.fsdp import fully_shard

from adapters import LowRank, adapter_weights, write_weights
from rollout_link import RolloutLink


class AsyncTuner:
    def __init__(self, model, link, folder):
        self.state = PartialState()
        self.folder = folder
        self.link = link
        self.version = 0
        for layer in model:
            fully_shard(layer)
        self.model = fully_shard(model)
        self.opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step(self, x, advantage):
        loss = -(self.model(x).log_softmax(-1)[:, 0] * advantage).mean()
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()

    def sync_weights(self):
        main = self.state.is_main_process
        if main:
            self.link.pause()
        self.state.wait_for_everyone()
        weights = adapter_weights(self.model)
        if main:
            write_weights(weights, self.folder)
        self.state.wait_for_everyone()
        if main:
            self.version += 1
            self.link.reload(self.folder, self.version)
            self.link.resume()


def main(steps=100, every=5):
    state = PartialState()
    link = RolloutLink(os.environ["ROLLOUT_URL"])
    layers = [LowRank(torch.nn.Linear(1024, 1024)) for _ in range(8)]
    tuner = AsyncTuner(torch.nn.Sequential(*layers).to(state.device), link, "adapter")
    for step in range(1, steps + 1):
        tuner.step(torch.randn(32, 1024, device=state.device), torch.randn(32, device=state.device))
        if step % every == 0:
            tuner.sync_weights()


if __name__ == "__main__":
    main()
