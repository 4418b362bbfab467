from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from policy_trainer import PolicyTrainer
from robot_data import EpisodeSteps, collate
from vision_policy import build_policy


@dataclass
class Config:
    output_dir: str = "runs/arm"
    accumulate: int = 4
    max_steps: int = 40000
    save_every: int = 5000
    batch: int = 8
    lr: float = 2e-5


def main():
    cfg = Config()
    model = build_policy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    loader = DataLoader(EpisodeSteps("data/arm"), batch_size=cfg.batch, shuffle=True, collate_fn=collate)
    PolicyTrainer(cfg, model, optimizer, loader).train()


if __name__ == "__main__":
    main()
