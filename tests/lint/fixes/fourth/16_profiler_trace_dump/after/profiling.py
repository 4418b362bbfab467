import contextlib
import logging
import os
import time

import torch

logger = logging.getLogger(__name__)
WARMUP = 3


@contextlib.contextmanager
def maybe_enable_profiling(config):
    if not config.enable_profiling:
        yield None
        return
    trace_dir = os.path.join(config.dump_folder, config.save_traces_folder)
    profile_freq = config.profile_freq
    rank = torch.distributed.get_rank()
    iteration = 0

    def trace_handler(prof):
        nonlocal iteration
        iteration += profile_freq
        curr_trace_dir = os.path.join(trace_dir, f"iteration_{iteration}")
        os.makedirs(curr_trace_dir, exist_ok=True)
        begin = time.monotonic()
        prof.export_chrome_trace(f"{curr_trace_dir}/rank{rank}_trace.json")
        logger.info(f"Finished dumping traces in {time.monotonic() - begin:.2f} seconds")
        torch.distributed.barrier()

    wait = profile_freq - (1 + WARMUP)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        schedule=torch.profiler.schedule(wait=wait, warmup=WARMUP, active=1),
        on_trace_ready=trace_handler,
    ) as prof:
        yield prof
