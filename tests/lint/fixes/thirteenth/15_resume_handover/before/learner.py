from pathlib import Path

import torch


class Learner:
    def __init__(self, policy, wire, folder: Path):
        self.policy = policy
        self.wire = wire
        self.folder = folder
        self.opt = torch.optim.Adam(policy.parameters(), lr=1e-3)

    def _load(self, step):
        saved = torch.load(self.folder / f"step_{step}.pt", map_location="cpu")
        self.policy.load_state_dict(saved["policy"])
        self.opt.load_state_dict(saved["opt"])

    def _save(self, step):
        saved = {"policy": self.policy.state_dict(), "opt": self.opt.state_dict()}
        torch.save(saved, self.folder / f"step_{step}.pt")

    def run(self, start, stop):
        if start > 0:
            self._load(start)
        for step in range(start + 1, stop + 1):
            batch = self.wire.collect()
            value = self.policy(batch[:, :-1]).squeeze(-1)
            loss = (value - batch[:, -1]).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.wire.sync_weights(self.policy)
            if step % 100 == 0:
                self._save(step)
                print(f"step {step}: loss {loss.item():.4f}")
