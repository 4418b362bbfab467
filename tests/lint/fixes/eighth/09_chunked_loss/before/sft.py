import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from chat_data import ChatTurns
from chunked import chunked_nll


class Backbone(nn.Module):
    def __init__(self, vocab=8192, width=512, depth=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(depth)
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens, labels):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return chunked_nll(hidden[:, :-1], labels[:, 1:], self.lm_head)


CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 3},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    deepspeed.init_distributed()
    torch.cuda.set_device(args.local_rank)
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        model = Backbone()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    data = ChatTurns()
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=2, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            loss = engine(batch["tokens"].cuda(), batch["labels"].cuda())
            engine.backward(loss)
            engine.step()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(epoch, step, loss.item())


if __name__ == "__main__":
    main()
