from pathlib import Path

import torch
from torch.utils.data import Dataset
from torchvision.io import read_image
from torchvision.transforms.functional import resize


class GridBoxes(Dataset):
    def __init__(self, root, size, classes, stride=16):
        self.files = sorted(Path(root).glob("images/*.jpg"))
        self.size, self.classes, self.cells = size, classes, size // stride

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = resize(read_image(str(self.files[i])), [self.size, self.size])
        target = torch.zeros(5 + self.classes, self.cells, self.cells)
        label = Path(str(self.files[i]).replace("images", "labels")).with_suffix(".txt")
        for line in label.read_text().splitlines():
            c, x, y, w, h = (float(v) for v in line.split())
            gx, gy = int(x * self.cells), int(y * self.cells)
            target[:5, gy, gx] = torch.tensor([x, y, w, h, 1.0])
            target[5 + int(c), gy, gx] = 1.0
        return image, target
