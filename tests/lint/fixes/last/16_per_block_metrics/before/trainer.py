import torch
from torch.nn.parallel import DistributedDataParallel

from metrics import RMSEAccumulator


def split_blocks(tensor, species):
    return {f"center_type={s.item()}": tensor[species == s] for s in species.unique()}


def train(model, loader, hypers, device, is_distributed):
    model = DistributedDataParallel(model.to(device), device_ids=[device]) if is_distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=hypers["learning_rate"])
    for epoch in range(hypers["num_epochs"]):
        calculator = RMSEAccumulator(hypers["log_separate_blocks"])
        loader.sampler.set_epoch(epoch)
        for species, features, target in loader:
            features, target = features.to(device), target.to(device)
            prediction = model(features)
            loss = (prediction - target).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            calculator.update(
                {"energy": split_blocks(prediction.detach(), species)}, {"energy": split_blocks(target, species)}
            )
        print(epoch, calculator.finalize(is_distributed=is_distributed, device=device))
