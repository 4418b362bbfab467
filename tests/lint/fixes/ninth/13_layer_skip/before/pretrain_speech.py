import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap
from torch.utils.data import DataLoader, DistributedSampler

from features import FeatureSet, collate
from speech_encoder import SpeechEncoder


class MaskedPrediction(nn.Module):
    def __init__(self, units=504, width=768):
        super().__init__()
        self.inp = nn.Linear(80, width)
        self.encoder = SpeechEncoder(width)
        self.out = nn.Linear(width, units)

    def forward(self, feats, pad, targets):
        logits = self.out(self.encoder(self.inp(feats), pad))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def main(epochs=100):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    np.random.seed(1 + dist.get_rank())
    with enable_wrap(wrapper_cls=FSDP, device_id=torch.cuda.current_device()):
        model = wrap(MaskedPrediction())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    data = FeatureSet("train")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, collate_fn=collate, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for feats, pad, targets in loader:
            loss = model(feats.cuda(), pad.cuda(), targets.cuda())
            loss.backward()
            model.clip_grad_norm_(10.0)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
