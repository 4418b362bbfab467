import argparse
import time

import dgl
import torch as th
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from dgl.nn.pytorch import SAGEConv


class Sage(nn.Module):
    def __init__(self, d_in, d_hidden, n_classes, n_layers, dropout=0.5):
        super().__init__()
        dims = [d_in] + [d_hidden] * (n_layers - 1) + [n_classes]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in zip(dims[:-1], dims[1:]))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks, h):
        for i, (layer, block) in enumerate(zip(self.layers, blocks)):
            h = layer(block, h)
            if i + 1 < len(self.layers):
                h = self.dropout(F.relu(h))
        return h


def load_ids(g, book):
    train = dgl.distributed.node_split(g.ndata["train_mask"], book, force_even=False)
    valid = dgl.distributed.node_split(g.ndata["val_mask"], book, force_even=False)
    return train, valid


@th.no_grad()
def accuracy(model, g, ids, args):
    sampler = dgl.dataloading.MultiLayerNeighborSampler([-1] * args.layers)
    loader = dgl.dataloading.DistNodeDataLoader(g, ids, sampler, batch_size=args.eval_batch_size)
    model.eval()
    hits = th.zeros(2)
    for input_nodes, seeds, blocks in loader:
        logits = model(blocks, g.ndata["features"][input_nodes])
        hits[0] += (logits.argmax(1) == g.ndata["labels"][seeds]).sum()
        hits[1] += len(seeds)
    dist.all_reduce(hits)
    model.train()
    return (hits[0] / hits[1].clamp(min=1)).item()


def run(args, g):
    train_ids, valid_ids = load_ids(g, g.get_partition_book())
    sampler = dgl.dataloading.MultiLayerNeighborSampler(args.fanout)
    loader = dgl.dataloading.DistNodeDataLoader(
        g, train_ids, sampler, batch_size=args.batch_size, shuffle=True, drop_last=False)

    net = Sage(g.ndata["features"].shape[1], args.hidden, args.classes, args.layers)
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = th.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        start = time.time()
        for step, (input_nodes, seeds, blocks) in enumerate(loader):
            logits = model(blocks, g.ndata["features"][input_nodes])
            loss = F.cross_entropy(logits, g.ndata["labels"][seeds].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.log_every == 0:
                print(f"part {g.rank()} epoch {epoch} step {step} loss {loss.item():.4f}")
        print(f"part {g.rank()} epoch {epoch}: {time.time() - start:.1f} s")
        if (epoch + 1) % args.eval_every == 0:
            print("validation accuracy", accuracy(model.module, g, valid_ids, args))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ip-config", required=True)
    p.add_argument("--graph", required=True)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--fanout", type=int, nargs="+", default=[10, 25])
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--classes", type=int, default=40)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--eval-batch-size", type=int, default=4096)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--eval-every", type=int, default=5)
    p.add_argument("--log-every", type=int, default=20)
    p.add_argument("--lr", type=float, default=3e-3)
    args = p.parse_args()
    dgl.distributed.initialize(args.ip_config)
    dist.init_process_group(backend="gloo")
    run(args, dgl.distributed.DistGraph(args.graph))


if __name__ == "__main__":
    main()
