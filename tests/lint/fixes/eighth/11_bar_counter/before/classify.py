import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

from scoring import score


def make_split(count, seed):
    gen = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 40, generator=gen)
    labels = (features[:, :10].sum(1) > 0).long()
    return TensorDataset(features, labels)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--evals-per-epoch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-4)
    return parser.parse_args()


def main():
    args = parse()
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train = DataLoader(make_split(8000, 0), batch_size=args.batch_size, shuffle=True)
    valid = DataLoader(make_split(1000, 1), batch_size=args.batch_size)
    model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)

    total = args.epochs * len(train)
    every = max(len(train) // args.evals_per_epoch, 1)
    milestones = set(range(every, total + 1, every))
    best = 0.0
    progress = tqdm(range(total), total=total, disable=not accelerator.is_main_process)
    for epoch in range(args.epochs):
        for features, labels in train:
            loss = nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.update(1)
            if progress.n in milestones:
                accuracy = score(accelerator, model, valid)
                best = max(best, accuracy)
                progress.set_postfix(epoch=epoch, loss=loss.item(), best=best)
    accelerator.print("best accuracy", best)


if __name__ == "__main__":
    main()
