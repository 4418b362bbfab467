import argparse

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, PipelineModule

from corpus import make_batches


class Embed(nn.Module):
    def __init__(self, vocab, width, length):
        super().__init__()
        self.word = nn.Embedding(vocab, width)
        self.place = nn.Embedding(length, width)

    def forward(self, ids):
        return self.word(ids) + self.place(torch.arange(ids.size(1), device=ids.device))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device, dtype=x.dtype)
        return self.body(x, src_mask=mask, is_causal=True)


class Head(nn.Module):
    def __init__(self, width, vocab):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocab, bias=False)

    def forward(self, x):
        return self.out(self.norm(x))


def token_loss(logits, labels):
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def build(args):
    layers = [LayerSpec(Embed, args.vocab, args.width, args.length)]
    layers += [LayerSpec(Block, args.width, args.heads) for _ in range(args.depth)]
    layers += [LayerSpec(Head, args.width, args.vocab)]
    return PipelineModule(layers=layers, num_stages=args.stages, loss_fn=token_loss,
                          partition_method="type:Block", activation_checkpoint_interval=1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--corpus", required=True)
    p.add_argument("--vocab", type=int, default=50304)
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--depth", type=int, default=24)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--stages", type=int, default=4)
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--local_rank", type=int, default=-1)
    p = deepspeed.add_config_arguments(p)
    args = p.parse_args()

    deepspeed.init_distributed()
    net = build(args)
    engine, _, _, _ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
    grid = engine.mpu
    batches = make_batches(args.corpus, args.length, engine.train_micro_batch_size_per_gpu(),
                           grid.get_data_parallel_rank(), grid.get_data_parallel_world_size())
    for step in range(args.steps):
        loss = engine.train_batch(data_iter=batches)
        if step % 50 == 0 and engine.global_rank == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        if step and step % 1000 == 0:
            engine.save_checkpoint("checkpoints", tag=f"step{step}")


if __name__ == "__main__":
    main()
