import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


class Groups:
    def __init__(self, tensor_parallel):
        world, rank = dist.get_world_size(), dist.get_rank()
        self.tp = self.leaders = None
        for start in range(0, world, tensor_parallel):
            ranks = list(range(start, start + tensor_parallel))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.tp, self.tp_ranks = group, ranks
        self.leader_ranks = list(range(0, world, tensor_parallel))
        self.leaders = dist.new_group(self.leader_ranks)
        self.is_leader = rank in self.leader_ranks

    def mean_over_replicas(self, value):
        if self.is_leader:
            dist.all_reduce(value, group=self.leaders)
            value /= len(self.leader_ranks)
        dist.broadcast(value, src=self.tp_ranks[0], group=self.tp)
        return value


def common_steps(local_batches, device):
    steps = torch.tensor(local_batches, device=device)
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    return int(steps.item())


def train_truncated(model, optimizer, dataset, batch_size, device, groups):
    steps = common_steps(len(dataset) // batch_size, device)
    for step in range(steps):
        batch = torch.stack([dataset[i] for i in range(step * batch_size, (step + 1) * batch_size)])
        loss = model(batch.to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        groups.mean_over_replicas(loss.detach())


def train_joined(model, optimizer, loader, device):
    with Join([model]):
        for batch in loader:
            loss = model(batch.to(device)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def pass_along(tensor, stage, stages):
    if stage > 0:
        received = torch.empty_like(tensor)
        dist.recv(received, stage - 1)
        tensor = tensor + received
    if stage < stages - 1:
        dist.send(tensor, stage + 1)
    return tensor


def main(model, dataset, loader, cfg):
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    groups = Groups(cfg.tensor_parallel)
    model = DDP(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    train_truncated(model, optimizer, dataset, cfg.batch_size, device, groups)
    train_joined(model, optimizer, loader, device)
    total = pass_along(torch.ones(1, device=device), dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == dist.get_world_size() - 1:
        print(total.item())
    dist.destroy_process_group()
