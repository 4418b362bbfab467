"""Hidden-state files of a teacher, one sample a file."""
import os

import torch
from torch.utils.data import Dataset


def find_files(folder, ending=".ckpt"):
    paths = []
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith(ending):
                paths.append(os.path.join(root, name))
    return paths


class TeacherFiles(Dataset):
    def __init__(self, folder, max_len):
        self.paths = find_files(folder)
        self.max_len = max_len

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        item = torch.load(self.paths[index], map_location="cpu")
        cut = slice(0, self.max_len)
        return {
            "hidden": item["hidden_state"][cut],
            "target": item["target"][cut],
            "mask": item["loss_mask"][cut],
        }
