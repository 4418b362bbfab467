import argparse
import os

import deepspeed
import torch
import torch.nn as nn
import torchvision

from data_utils import load_cifar10


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=5)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", args.local_rank)))
    deepspeed.init_distributed()
    trainset = load_cifar10()

    net = torchvision.models.resnet18(num_classes=10)
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=trainset
    )
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            inputs, labels = inputs.to(engine.local_rank), labels.to(engine.local_rank)
            loss = criterion(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
