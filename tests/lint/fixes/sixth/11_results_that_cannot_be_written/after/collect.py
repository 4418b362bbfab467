import sys

import torch.distributed as dist

from results import write_rows


def collect(cases, measure, path):
    dist.init_process_group("nccl")
    group = dist.new_group()
    try:
        rows = [measure(case, group) for case in cases]
        outcome = [None]
        if dist.get_rank() == 0:
            try:
                write_rows(path, rows)
            except Exception as error:
                outcome = [str(error)]
        dist.broadcast_object_list(outcome, src=0, group=group)
        if outcome[0] is not None:
            raise RuntimeError(outcome[0])
    finally:
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception as error:
                print(f"could not leave the group: {error}", file=sys.stderr)
