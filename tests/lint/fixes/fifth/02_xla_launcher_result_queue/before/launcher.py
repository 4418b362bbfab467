import torch.multiprocessing as mp
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp


def to_cpu(results):
    return {k: v.cpu() for k, v in results.items()}


class XLALauncher:
    def __init__(self, strategy, start_method="fork"):
        self._strategy = strategy
        self._start_method = start_method

    def launch(self, function, *args, **kwargs):
        context = mp.get_context(self._start_method)
        return_queue = context.SimpleQueue()
        xmp.spawn(
            self._wrapping_function,
            args=(function, args, kwargs, return_queue),
            nprocs=self._strategy.num_processes,
            join=False,
            start_method=self._start_method,
        )
        return return_queue.get()

    def _wrapping_function(self, process_idx, function, args, kwargs, return_queue):
        self._strategy._local_rank = process_idx
        results = function(*args, **kwargs)
        if process_idx == 0:
            return_queue.put(to_cpu(results))
        rank_teardown(process_idx)


def rank_teardown(rank):
    xm.rendezvous("end-process")
    if rank == 0:
        xm.mark_step()
