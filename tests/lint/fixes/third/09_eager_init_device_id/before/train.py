from datetime import timedelta

import packaging.version
import torch
from megatron.core import mpu
from megatron.training.global_vars import get_args


def _initialize_distributed():
    args = get_args()
    device_count = torch.cuda.device_count()
    if torch.distributed.is_initialized():
        args.rank = torch.distributed.get_rank()
        args.world_size = torch.distributed.get_world_size()
    else:
        device_id = None
        if device_count > 0:
            torch.cuda.set_device(args.local_rank)
            device_id = torch.device(f"cuda:{args.local_rank}")
        kwargs = {
            "backend": args.distributed_backend,
            "world_size": args.world_size,
            "rank": args.rank,
            "timeout": timedelta(minutes=args.distributed_timeout_minutes),
        }
        if packaging.version.Version(torch.__version__) >= packaging.version.Version("2.3.0"):
            kwargs["device_id"] = device_id
        torch.distributed.init_process_group(**kwargs)

    if device_count > 0 and not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(
            args.tensor_model_parallel_size,
            args.pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
        )
