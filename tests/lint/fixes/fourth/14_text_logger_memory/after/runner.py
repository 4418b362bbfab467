import time
from collections import OrderedDict, defaultdict

import torch.distributed as dist


class LogBuffer:
    def __init__(self):
        self.history = defaultdict(list)
        self.output = OrderedDict()
        self.ready = False

    def clear(self):
        self.history.clear()
        self.clear_output()

    def clear_output(self):
        self.output.clear()
        self.ready = False

    def average(self, n):
        for key, values in self.history.items():
            self.output[key] = sum(values[-n:]) / len(values[-n:])
        self.ready = True


class Runner:
    def __init__(self, model, optimizer, logger, hooks):
        self.model, self.optimizer, self.logger, self.hooks = model, optimizer, logger, hooks
        self.log_buffer = LogBuffer()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.mode, self.epoch, self.inner_iter = None, 0, 0

    def call_hook(self, name):
        for hook in self.hooks:
            getattr(hook, name, lambda runner: None)(self)

    def train(self, data_loader):
        self.mode = "train"
        self.data_loader = data_loader
        self.call_hook("before_epoch")
        for self.inner_iter, batch in enumerate(data_loader):
            start = time.time()
            loss = self.model(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.log_buffer.history["time"].append(time.time() - start)
            self.log_buffer.history["loss"].append(loss.item())
            self.call_hook("after_train_iter")
        self.call_hook("after_train_epoch")
        self.epoch += 1
