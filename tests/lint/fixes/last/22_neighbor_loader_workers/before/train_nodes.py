import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from datamodule import NodeDataModule
from sampling import NeighborSampler


def main(data: Data):
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    model = GraphSAGE(data.num_features, 256, num_layers=2, out_channels=int(data.y.max()) + 1).to(rank)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    module = NodeDataModule(data, NeighborSampler)
    for epoch in range(10):
        loader = module.dataloader(data.train_mask, rank, dist.get_world_size(), shuffle=True)
        for batch in loader:
            batch = batch.to(rank)
            out = model(batch.x, batch.edge_index)[:batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[:batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(epoch, loss.item())
    dist.destroy_process_group()
