import torch
import torch.distributed as dist


class DistEvalHook:
    def __init__(self, dataset, interval=1):
        self.dataset = dataset
        self.interval = interval

    def after_train_epoch(self, runner):
        if (runner.epoch + 1) % self.interval != 0:
            return
        runner.model.eval()
        part = {}
        for idx in range(runner.rank, len(self.dataset), runner.world_size):
            with torch.no_grad():
                part[idx] = runner.model(self.dataset[idx])
        parts = [None] * runner.world_size
        dist.all_gather_object(parts, part)
        if runner.rank == 0:
            results = {k: v for p in parts for k, v in p.items()}
            for name, val in self.dataset.evaluate(results).items():
                runner.log_buffer.output[name] = val
            runner.log_buffer.ready = True
        dist.barrier()
