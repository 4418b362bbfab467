import torch


def class_counts(guess, truth, classes):
    both = truth[guess == truth]
    inter = torch.bincount(both, minlength=classes).float()
    area = torch.bincount(guess, minlength=classes) + torch.bincount(truth, minlength=classes)
    label = torch.bincount(truth, minlength=classes).float()
    return torch.stack([inter, area - inter, label])
