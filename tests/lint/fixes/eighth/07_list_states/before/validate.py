import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from box_metric import RareClassRecall


class Scenes(torch.utils.data.Dataset):
    def __init__(self, annotations):
        self.annotations = annotations

    def __len__(self):
        return len(self.annotations)

    def __getitem__(self, index):
        rows = self.annotations[index]
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)


def run(loader, metric):
    found, wanted = [], []
    for truth in map(torch.Tensor.cuda, loader):
        if truth.shape[0]:
            wanted.append(truth)
            found.append(truth + 0.02 * torch.randn_like(truth))
    if wanted:
        boxes = torch.cat(found)
        metric.update(boxes, torch.rand(boxes.shape[0], device="cuda"), torch.cat(wanted))
    return metric.compute()


def main(path="rare_boxes.pt"):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    data = Scenes(torch.load(path))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=1, sampler=sampler, collate_fn=lambda rows: rows[0])
    print(dist.get_rank(), run(loader, RareClassRecall()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
