import json

import torch.distributed as dist

from monitor import Monitor


def attach(stage, monitor, kinds):
    for name, module in stage.named_modules():
        if isinstance(module, kinds):
            module.register_forward_hook(monitor.hook(name))


def train(stage, schedule, steps, kinds, log):
    monitor = Monitor()
    attach(stage, monitor, kinds)
    for step in range(steps):
        schedule.step()
        metrics = monitor.gather_and_aggregate()
        if dist.get_rank() == 0:
            log.write(json.dumps({"step": step, **metrics}))
