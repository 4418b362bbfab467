import torch
import torch.distributed as dist


class EpochBatchIterator:
    def __init__(self, dataset, batch_sampler, epoch=1):
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.epoch = epoch
        self._next_epoch_itr = None
        self._cur = None

    def next_epoch_itr(self):
        if self._next_epoch_itr is not None:
            self._cur, self._next_epoch_itr = self._next_epoch_itr, None
        else:
            self._cur = iter([self.dataset[i] for i in self.batch_sampler(self.epoch)])
        return self._cur

    def load_state_dict(self, state):
        self.epoch = state["epoch"]
        offset = state.get("iterations_in_epoch", 0)
        if offset > 0:
            batches = self.batch_sampler(self.epoch)[offset:]
            self._next_epoch_itr = iter([self.dataset[i] for i in batches]) if batches else None
            if self._next_epoch_itr is None:
                self.epoch += 1
        else:
            self._next_epoch_itr = None


def train_epoch(model, optimizer, itr):
    for batch in itr:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main(args, model, optimizer, epoch_itr):
    model = torch.nn.parallel.DistributedDataParallel(model)
    while True:
        newest = torch.tensor([epoch_itr.epoch], device=args.device)
        dist.all_reduce(newest, op=dist.ReduceOp.MAX)
        epoch_itr.epoch = int(newest.item())
        if epoch_itr.epoch > args.max_epoch:
            break
        itr = epoch_itr.next_epoch_itr()
        train_epoch(model, optimizer, itr)
        epoch_itr.epoch += 1
    dist.barrier()
