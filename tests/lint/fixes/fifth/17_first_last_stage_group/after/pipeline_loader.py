import torch
import torch.distributed as dist


def split_batch(batch, pieces):
    (features, label) = batch
    target, mask = label
    for chunk in zip(features.chunk(pieces), target.chunk(pieces), mask.chunk(pieces)):
        yield chunk[0], (chunk[1], chunk[2])


class PipelineLoader:
    def __init__(self, dataset, engine, accumulation_steps):
        self.dataset = dataset
        self.engine = engine
        self.accumulation_steps = accumulation_steps
        self.epoch = 1

    def __iter__(self):
        for features, target, mask in self.dataset:
            target = self._share_target(target)
            yield from split_batch((features, (target, mask)), self.accumulation_steps)
        self.epoch += 1

    def _share_target(self, target):
        if not self.engine.is_pipe_parallel:
            return target
        assert self.engine.is_first_stage() or self.engine.is_last_stage()
        grid = self.engine.grid
        src = grid.stage_to_global(0)
        dst = grid.stage_to_global(self.engine.num_stages - 1)
        assert src in grid.pp_group and dst in grid.pp_group
        target = target.to("cuda")
        if self.engine.is_first_stage():
            dist.send(target, dst)
        else:
            dist.recv(target, src)
        return target

    def sync_epoch(self):
        epochs = [None] * dist.get_world_size()
        dist.all_gather_object(epochs, self.epoch)
        self.epoch = max(epochs)
