"""Collectives of libraries, by their full names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from unhang.lint.ir import File


class Collective(NamedTuple):
    """A call that all members of a group must make.

    `op`: its family, so that two spellings of one operation are equal; `group_at`: position of the group argument, -1: none.
    `unifies`: positions of arguments that are equal on all ranks afterwards; `returns`: the result is. `group`: the smaller group it is for.
    """

    op: str
    group_at: int = -1
    unifies: tuple[int, ...] = ()
    returns: bool = False
    group: str = ""


_FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
_STATE = "torch.distributed.checkpoint.state_dict"
# What other libraries have for all ranks, by full names; a `group` is a smaller one.
OF_LIBRARIES: Mapping[str, Collective] = {
    **{f"{_STATE}.{verb}_{what}state_dict": Collective("state_dict") for verb in ("get", "set") for what in ("", "model_", "optimizer_")},
    **{
        f"{_FSDP}.{name}": Collective("state_dict")
        for name in ("optim_state_dict", "full_optim_state_dict", "scatter_full_optim_state_dict", "summon_full_params")
    },
    "deepspeed.zero.GatheredParameters": Collective("all_gather"),
    **{
        f"deepspeed.utils{where}.safe_{verb}_full_{what}": Collective("all_gather")  # of what each rank has a part of
        for where in ("", ".tensor_fragment")
        for verb, what in (("get", "grad"), *((v, w) for v in ("get", "set") for w in ("fp32_param", "optimizer_state")))
    },
    "torch.distributed.tensor.distribute_tensor": Collective("scatter"),
    "torch.distributed.tensor.distribute_module": Collective("scatter"),
    "torch.distributed._symmetric_memory.rendezvous": Collective("rendezvous", 1),
    "detectron2.utils.comm.synchronize": Collective("barrier"),
    "detectron2.utils.comm.gather": Collective("gather"),
    "detectron2.utils.comm.all_gather": Collective("all_gather", -1, (), True),
    "detectron2.utils.comm.reduce_dict": Collective("reduce"),
    "detectron2.utils.comm.shared_random_seed": Collective("all_gather", -1, (), True),
    "torch_xla.core.xla_model.rendezvous": Collective("barrier"),
    "torch_xla.core.xla_model.save": Collective("barrier"),  # all ranks meet in it, whoever writes
    "torch_xla.core.xla_model.all_reduce": Collective("all_reduce", -1, (1,), True),
    "torch_xla.core.xla_model.all_gather": Collective("all_gather", -1, (), True),
    "torch_xla.core.xla_model.mesh_reduce": Collective("all_gather", -1, (), True),
    **{f"torch_xla.core.xla_model.{name}": Collective("all_reduce") for name in ("optimizer_step", "reduce_gradients")},
    **{f"torch_xla.core.xla_model.{name}": Collective(name) for name in ("all_to_all", "reduce_scatter", "collective_permute")},
    "torch_xla.core.xla_model.broadcast_master_param": Collective("broadcast"),
    **{
        f"ignite.distributed{where}.{name}": Collective(name, -1, (), name != "barrier")
        for where in ("", ".utils") for name in ("all_reduce", "all_gather", "broadcast", "barrier")
    },
    **dict.fromkeys(
        ("ray.train.report", "ray.train.session.report", "ray.air.session.report", "ray.train.torch.report"), Collective("report")
    ),
    "ray.train.collective.barrier": Collective("barrier"),
    "ray.train.collective.broadcast_from_rank_zero": Collective("broadcast", -1, (), True),
    **{
        f"vllm.distributed{where}.tensor_model_parallel_{op}": Collective(op, -1, (), op != "gather", "tp")
        for where in ("", ".communication_op", ".parallel_state") for op in ("all_reduce", "all_gather", "gather")
    },
    **{
        f"megatron.core.tensor_parallel{where}.{name}": Collective(op, group="tp")
        for where in ("", ".mappings")
        for name, op in {
            "gather_from_tensor_model_parallel_region": "all_gather",
            "gather_from_sequence_parallel_region": "all_gather",
            "reduce_from_tensor_model_parallel_region": "all_reduce",
            "reduce_scatter_to_sequence_parallel_region": "reduce_scatter",
        }.items()
    },
}  # fmt: skip
# A program without any of these is one process.
PARALLEL = (
    "torch.distributed",
    "torch.nn.parallel",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "deepspeed",
    "horovod",
    "transformers",
    "ignite",
    "torchrun",
    "ray",
    "mpi4py",
    "composer",
)


def have_replicas(files: Iterable[File]) -> bool:
    """Whether a program trains modules without a wrapper on several cores of a TPU."""
    names = {n for f in files for n in f.names.values() if n.startswith("torch_xla")}
    words = {w for f in files for x in f.functions for w in x.words} if names else set()
    is_spread = any(n.startswith("torch_xla.distributed") for n in names) or not _OF_CORES.isdisjoint(words)
    return is_spread and not _REDUCES.isdisjoint(words)


_OF_CORES = {"xrt_world_size", "get_ordinal"}
_REDUCES = {"optimizer_step", "reduce_gradients"}
# A loader over one of these agrees on a seed with the loaders of the other ranks whenever it is iterated over.
PIPES = ("torchdata.datapipes", "torch.utils.data.datapipes")
# Properties of objects of a library that make collectives: module -> name of the object, of the property, and what it makes.
PROPERTIES = dict.fromkeys(("lightning", "pytorch_lightning"), ("trainer", "log_dir", "broadcast"))
CHECKPOINTS = {
    "torch.distributed.checkpoint.save": "save",
    "torch.distributed.checkpoint.load": "load",
    "torch.distributed.checkpoint.save_state_dict": "save",
    "torch.distributed.checkpoint.load_state_dict": "load",
    "torch.distributed.checkpoint.async_save": "save",
    "torch.distributed.checkpoint.state_dict_saver.save": "save",
    "torch.distributed.checkpoint.state_dict_loader.load": "load",
}
MESHES = {
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.init_device_mesh",
    "torch.distributed.device_mesh.DeviceMesh",
}
