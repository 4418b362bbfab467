import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from collect import stack_ranks, widen
from tagger import Sentences, Tagger, collate


@torch.no_grad()
def rate(net, loader, device):
    net.eval()
    right = total = 0
    for words, tags in loader:
        guess = net(words.to(device)).argmax(-1)
        tags = tags.to(device)
        guess, tags = stack_ranks(widen(guess, 0)), stack_ranks(widen(tags, -100))
        known = tags != -100
        right += (guess[known] == tags[known]).sum().item()
        total += known.sum().item()
    return right / total


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    data = Sentences(1024)
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False), collate_fn=collate)
    score = rate(Tagger().to(device), loader, device)
    if dist.get_rank() == 0:
        print(f"token accuracy {score:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
