import torch


def load_vqa(args, split):
    return torch.load(f"{args.data_dir}/{split}.pt")
