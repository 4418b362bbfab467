from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist


class CoreTrainer:
    def __init__(self, train_module, data_loader, metrics_collect_interval=10):
        self.train_module = train_module
        train_module.trainer = self
        self.data_loader = data_loader
        self.metrics_collect_interval = metrics_collect_interval
        self.dp_process_group = dist.new_group()
        self.bookkeeping_pg = dist.new_group(backend="gloo")
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.global_step = 0
        self._metrics = {}
        self._reduce_types = {}

    def record_metric(self, name, value, reduce_type="mean"):
        self._metrics.setdefault(self.global_step, {})[name] = torch.as_tensor(value, dtype=torch.float32)
        self._reduce_types[name] = reduce_type

    def _reduce_metrics(self, metrics):
        out = {}
        for step in sorted(metrics):
            names = [None] * dist.get_world_size(self.bookkeeping_pg)
            dist.all_gather_object(names, sorted(metrics[step]), group=self.bookkeeping_pg)
            for name in sorted(set().union(*names)):
                value = metrics[step].get(name, torch.zeros(()))
                if self._reduce_types.get(name, "mean") is not None:
                    dist.all_reduce(value, group=self.bookkeeping_pg)
                out[f"{name}@{step}"] = value.item()
        return out

    def _log_metrics(self):
        if not self._metrics:
            return
        metrics, self._metrics = self._metrics, {}
        self.pool.submit(self._reduce_metrics, metrics).result()

    def fit(self):
        for batch in self.data_loader:
            self.global_step += 1
            self.train_module.train_batch(batch)
            if self.global_step % self.metrics_collect_interval == 0:
                self._log_metrics()
