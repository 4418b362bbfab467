import argparse

import dgl
import dgl.nn.pytorch as dglnn
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from ogb.nodeproppred import DglNodePropPredDataset
from torch.nn.parallel import DistributedDataParallel


class Sage(nn.Module):
    def __init__(self, n_in, n_hidden, n_out, n_layers=3, dropout=0.5):
        super().__init__()
        sizes = [n_in] + [n_hidden] * (n_layers - 1) + [n_out]
        self.layers = nn.ModuleList(dglnn.SAGEConv(a, b, "mean") for a, b in zip(sizes, sizes[1:]))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks, h):
        for i, (layer, block) in enumerate(zip(self.layers, blocks)):
            h = layer(block, h)
            if i + 1 < len(self.layers):
                h = self.dropout(F.relu(h))
        return h


def node_loader(graph, train_nid, args):
    sampler = dgl.dataloading.MultiLayerNeighborSampler([int(f) for f in args.fan_out.split(",")])
    return dgl.dataloading.NodeDataLoader(
        graph,
        train_nid,
        sampler,
        use_ddp=True,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=False,
        num_workers=args.num_workers,
    )


def run(proc_id, n_gpus, args, data):
    graph, labels, train_nid, valid_nid, n_classes = data
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:12345", world_size=n_gpus, rank=proc_id)
    torch.cuda.set_device(proc_id)
    feats = graph.ndata["feat"]
    loader = node_loader(graph, train_nid, args)
    model = Sage(feats.shape[1], args.num_hidden, n_classes).to(proc_id)
    model = DistributedDataParallel(model, device_ids=[proc_id], output_device=proc_id)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.num_epochs):
        loader.set_epoch(epoch)
        model.train()
        for step, (input_nodes, seeds, blocks) in enumerate(loader):
            blocks = [b.int().to(proc_id) for b in blocks]
            pred = model(blocks, feats[input_nodes].to(proc_id))
            loss = F.cross_entropy(pred, labels[seeds].to(proc_id))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if proc_id == 0 and step % args.log_every == 0:
                acc = (pred.argmax(1) == labels[seeds].to(proc_id)).float().mean()
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} acc {acc.item():.4f}")
        dist.barrier()
    if proc_id == 0:
        torch.save(model.module.state_dict(), "sage.pt")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--num-epochs", type=int, default=20)
    parser.add_argument("--num-hidden", type=int, default=256)
    parser.add_argument("--fan-out", default="5,10,15")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--num-workers", type=int, default=4)
    args = parser.parse_args()
    dataset = DglNodePropPredDataset("ogbn-products")
    split = dataset.get_idx_split()
    graph, labels = dataset[0]
    graph.create_formats_()
    data = graph, labels[:, 0], split["train"], split["valid"], dataset.num_classes
    mp.spawn(run, args=(args.gpus, args, data), nprocs=args.gpus)


if __name__ == "__main__":
    main()
