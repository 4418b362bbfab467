import sys

import torch.distributed as dist

from results import write_rows


def collect(cases, measure, path):
    dist.init_process_group("nccl")
    group = dist.new_group()
    run_failed = False
    try:
        rows = [measure(case, group) for case in cases]
        if dist.get_rank() == 0:
            write_rows(path, rows)
    except BaseException:
        run_failed = True
        raise
    finally:
        if dist.is_initialized():
            if not run_failed:
                dist.barrier(group=group)
            try:
                dist.destroy_process_group()
            except Exception as error:
                print(f"could not leave the group: {error}", file=sys.stderr)
