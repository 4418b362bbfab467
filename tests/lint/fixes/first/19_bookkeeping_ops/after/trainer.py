import time
from collections import OrderedDict, defaultdict
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist


class Trainer:
    def __init__(self, model, optimizer, data_loader, callbacks, cancel_check_interval=25):
        self.model = model
        self.optimizer = optimizer
        self.data_loader = data_loader
        self.callbacks = callbacks
        self.cancel_check_interval = cancel_check_interval
        self.global_step = 0
        self._canceled = False
        self._canceling_rank = -1
        self._thread_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._local_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="trainer-local")
        self._bookkeeping_queue = defaultdict(OrderedDict)
        self._bookkeeping_pg = dist.new_group(backend="gloo")

    def run_bookkeeping_op(self, op, *args, cb=None, allow_multiple=True, distributed=True):
        op_name = op.__qualname__
        if not allow_multiple and self._bookkeeping_queue[op_name]:
            return

        op_id = time.perf_counter_ns()
        pool = self._thread_pool if distributed else self._local_pool
        future = pool.submit(op, *args)
        self._bookkeeping_queue[op_name][op_id] = future

        def callback(fut):
            self._bookkeeping_queue[op_name].pop(op_id, None)
            if cb is not None and not fut.cancelled():
                cb(fut.result())

        future.add_done_callback(callback)

    def _check_if_canceled(self):
        rank = torch.tensor(self._canceling_rank)
        dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=self._bookkeeping_pg)
        self._canceled = rank.item() >= 0

    def _reduce_loss(self, loss):
        dist.all_reduce(loss, group=self._bookkeeping_pg)
        return loss / dist.get_world_size()

    def fit(self):
        for batch in self.data_loader:
            loss = self.model(batch.cuda()).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_step += 1
            for callback in self.callbacks:
                callback.post_step(self)
            self.run_bookkeeping_op(self._reduce_loss, loss.detach().cpu())
            if self.global_step % self.cancel_check_interval == 0:
                self.run_bookkeeping_op(self._check_if_canceled)
