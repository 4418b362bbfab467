"""The port of the rendezvous is taken by another program; rank 0 cannot listen there."""

import datetime

import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))  # culprit
dist.barrier()
dist.destroy_process_group()
