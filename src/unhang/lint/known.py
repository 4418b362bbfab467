"""What libraries do, by name: which calls are collectives, which values differ between ranks, which objects hide collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from unhang.analyze.program.rank_names import kind_of_name
from unhang.lint.libraries import CHECKPOINTS, MESHES, OF_LIBRARIES, Collective

_DIST = "torch.distributed"
_OPS: dict[str, Collective] = {
    "all_reduce": Collective("all_reduce", 2, (0,), True),
    "all_reduce_coalesced": Collective("all_reduce", 2, (0,)),
    "all_reduce_dict": Collective("all_reduce", 1, (0,)),  # of mmengine, as the next two
    "collect_results": Collective("gather"),
    "sync_random_seed": Collective("broadcast", 0, (), True),
    "reduce": Collective("reduce", 3),
    "broadcast": Collective("broadcast", 2, (0,), True),
    "broadcast_object_list": Collective("broadcast", 2, (0,)),
    "all_gather": Collective("all_gather", 2, (0,)),
    "all_gather_object": Collective("all_gather", 2, (0,)),
    "all_gather_into_tensor": Collective("all_gather", 2, (0,)),
    "all_gather_single": Collective("all_gather", 2, (0,)),
    "_all_gather_base": Collective("all_gather", 2, (0,)),
    "all_gather_coalesced": Collective("all_gather", 2, (0,)),
    "gather": Collective("gather", 3),
    "gather_object": Collective("gather", 3),
    "scatter": Collective("scatter", 3),
    "scatter_object_list": Collective("scatter", 3),
    "reduce_scatter": Collective("reduce_scatter", 3),
    "reduce_scatter_tensor": Collective("reduce_scatter", 3),
    "reduce_scatter_single": Collective("reduce_scatter", 3),
    "_reduce_scatter_base": Collective("reduce_scatter", 3),
    "all_to_all": Collective("all_to_all", 2),
    "all_to_all_single": Collective("all_to_all", 4),
    "barrier": Collective("barrier", 0),
    "monitored_barrier": Collective("barrier", 0),
    "destroy_process_group": Collective("destroy", 0),
}
_MAKES_GROUPS = {"new_group": 0, "new_subgroups": 1, "new_subgroups_by_enumeration": 0, "split_group": 0}
_FUNCTIONAL = {
    "all_reduce": Collective("all_reduce", 2, (), True),
    "broadcast": Collective("broadcast", 2, (), True),
    "all_gather_tensor": Collective("all_gather", 2, (), True),
    "reduce_scatter_tensor": Collective("reduce_scatter", 3),
    "all_to_all_single": Collective("all_to_all", 3),
}

# Methods that are collectives whatever they are called on, since no other library names anything so.
METHODS: Mapping[str, Collective] = {
    "wait_for_everyone": Collective("barrier"),
    "gather_for_metrics": Collective("all_gather", -1, (), True),
    "monitored_barrier": Collective("barrier"),
    "full_tensor": Collective("all_gather"),  # of a DTensor
    "redistribute": Collective("all_gather"),
    "consolidate_state_dict": Collective("gather"),  # of an optimizer that is sharded
    "synchronize_between_processes": Collective("all_reduce"),
    "save_16bit_model": Collective("save"),
    **dict.fromkeys((f"_zero3_consolidated_{kind}_state_dict" for kind in ("16bit", "fp16")), Collective("state_dict")),
}
# Methods that are collectives on an object of this sort, by the last word of what they are called on.
_ON: Mapping[str, Mapping[str, Collective]] = {
    "accelerator": {
        "gather": Collective("all_gather", -1, (), True),
        "reduce": Collective("all_reduce", -1, (), True),
        "save_state": Collective("save"),
        "load_state": Collective("load"),
        "save_model": Collective("save"),
        "get_state_dict": Collective("state_dict"),
        "pad_across_processes": Collective("all_gather"),
        "check_trigger": Collective("all_reduce", -1, (), True),
    },
    "strategy": {
        "barrier": Collective("barrier"),
        "broadcast": Collective("broadcast", -1, (), True),
        "all_gather": Collective("all_gather", -1, (), True),
        "reduce": Collective("all_reduce", -1, (), True),
        "reduce_boolean_decision": Collective("all_reduce", -1, (), True),
    },
    "trainer": {
        "save_checkpoint": Collective("save"),
        **{name: Collective("fit") for name in ("fit", "validate", "test", "evaluate", "predict")},
    },
    "module": {"all_gather": Collective("all_gather", -1, (), True)},  # of Lightning
    "booster": {f"{verb}_{what}": Collective(verb) for verb in ("save", "load") for what in ("model", "optimizer")},
    "hvd": {
        "allreduce": Collective("all_reduce", -1, (), True),
        "allgather": Collective("all_gather", -1, (), True),
        "allgather_object": Collective("all_gather", -1, (), True),
        "broadcast": Collective("broadcast", -1, (), True),
        "broadcast_object": Collective("broadcast", -1, (), True),
        "broadcast_parameters": Collective("broadcast"),
        "broadcast_optimizer_state": Collective("broadcast"),
        "alltoall": Collective("all_to_all"),
        "barrier": Collective("barrier"),
    },
    "fabric": {
        "barrier": Collective("barrier"),
        "broadcast": Collective("broadcast", -1, (), True),
        "all_gather": Collective("all_gather", -1, (), True),
        "all_reduce": Collective("all_reduce", -1, (), True),
        "save": Collective("save"),
        "load": Collective("load"),
    },
    "engine": {"save_checkpoint": Collective("save"), "load_checkpoint": Collective("load")},
    "mpi": {
        **{f"{first}{op[1:]}": Collective(op, -1, (), op != "barrier") for op in ("allreduce", "allgather", "barrier") for first in (op[0], op[0].upper())},
        "bcast": Collective("broadcast", -1, (), True), "Bcast": Collective("broadcast", -1, (0,)),
    },
}  # fmt: skip
_NAMED_SO = {
    "accelerator": ("accelerator", "_accelerator", "acc"),
    "strategy": ("strategy", "_strategy"),
    "trainer": ("trainer", "_trainer"),
    "fabric": ("fabric", "_fabric"),
    "engine": ("model_engine", "ds_engine", "deepspeed_engine"),
    "module": ("self", "pl_module", "lightning_module"),
    "booster": ("booster",),
    "mpi": ("comm", "_comm", "mpi_comm", "COMM_WORLD"),
}

# A call of these gives an object that makes collectives of its own. Value: its sort.
WRAPPERS: Mapping[str, str] = {
    "torch.nn.parallel.DistributedDataParallel": "ddp",
    "torch.nn.parallel.distributed.DistributedDataParallel": "ddp",
    "torch.distributed.fsdp.FullyShardedDataParallel": "fsdp",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "fsdp",
    "fairscale.nn.FullyShardedDataParallel": "fsdp",
    "fairscale.nn.data_parallel.FullyShardedDataParallel": "fsdp",
    "torch.distributed.fsdp.fully_shard": "fsdp2",
    "torch.distributed._composable.fsdp.fully_shard": "fsdp2",
    "deepspeed.initialize": "engine",
    "apex.parallel.DistributedDataParallel": "apex",
    **dict.fromkeys(
        (
            "ray.train.torch.prepare_model",
            "ignite.distributed.auto_model",
            "mmengine.model.MMDistributedDataParallel",
            "mmcv.parallel.MMDistributedDataParallel",
        ),
        "ddp",
    ),
    "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel": "fsdp",
    **dict.fromkeys((f"torchrec.distributed{of}.DistributedModelParallel" for of in ("", ".model_parallel")), "fsdp2"),
    "horovod.torch.DistributedOptimizer": "optimizer",
    "accelerate.Accelerator": "accelerator",
    "accelerate.accelerator.Accelerator": "accelerator",
    "transformers.Trainer": "hf trainer",
    "transformers.Seq2SeqTrainer": "hf trainer",
    "lightning.Fabric": "fabric",
    "lightning.fabric.Fabric": "fabric",
    "lightning_fabric.Fabric": "fabric",
    "lightning.Trainer": "trainer",
    "lightning.pytorch.Trainer": "trainer",
    "pytorch_lightning.Trainer": "trainer",
}
# Collectives that a method of a wrapped module makes, beside its call and `backward` of what that returns.
HIDDEN: Mapping[str, Mapping[str, str]] = {
    "ddp": {"()": "forward", "forward": "forward", "backward": "backward"},
    "fsdp": {
        "()": "forward",
        "forward": "forward",
        "backward": "backward",
        "state_dict": "state_dict",
        "load_state_dict": "state_dict",
        "save_pretrained": "state_dict",
        "clip_grad_norm_": "clip_grad_norm_",
        "generate": "forward",
    },
    "apex": {"()": "", "forward": "", "backward": "backward"},  # its forward keeps to itself
    "ddp without buffers": {"()": "", "forward": "", "backward": "backward"},
    "fsdp2": dict.fromkeys(("()", "forward", "generate"), "forward")
    | {"backward": "backward", "clipped": "clip_grad_norm_"},  # by a function of torch
    "engine": {
        "()": "forward",
        "forward": "forward",
        "backward": "backward",
        "step": "step",
        "save_checkpoint": "save",
        "load_checkpoint": "load",
        "save_16bit_model": "save",
        "save_fp16_model": "save",
        "train_batch": "step",
        "eval_batch": "forward",
    },
    "optimizer": {"step": "step", "synchronize": "step"},  # of Horovod
    "replica": {"()": "", "forward": ""},  # without a wrapper: the optimizer, or a call before its step, reduces
    "hf model": {"()": "forward", "forward": "forward", "generate": "forward"},  # sharded, where the trainer shards it
    "hf trainer": {"train": "fit", "evaluate": "fit", "predict": "fit", "save_model": "save"},
    "metric": {"compute": "all_gather", "sync": "all_gather"},
    "trainer": {"fit": "fit", "validate": "fit", "test": "fit", "predict": "fit", "save_checkpoint": "save"},
}
# Contexts in which the first rank is done before the others begin: they wait for it.
IN_TURNS = {"main_process_first", "local_main_process_first"}
# Names that say where a call runs: decorators whose function runs on one rank alone.
ONE_RANK_DECORATORS = {
    *("rank_zero_only", "on_main_process", "main_process_only", "master_only", "only_on_main_process", "rank0_only"),
    *("on_local_main_process", "is_main_process_only", "run_on_main", "rank_zero_only_and_wait"),
}
# Results that differ between ranks although no rank is in them: the clock, chance, the process, the node.
LOCAL_SOURCES = {
    *("time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "time.strftime", "time.process_time"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
    *("uuid.uuid4", "uuid.uuid1", "os.getpid", "socket.gethostname", "platform.node", "os.uname"),
    *("tempfile.mkdtemp", "tempfile.mkstemp", "tempfile.mktemp"),
    *("tempfile.TemporaryDirectory", "tempfile.NamedTemporaryFile"),
    *("os.sysconf", "os.statvfs", "os.getloadavg", "os.times"),
    *("os.urandom", "secrets.token_hex", "secrets.randbelow"),
    *("psutil.virtual_memory", "shutil.disk_usage", "torch.cuda.memory_allocated", "torch.cuda.memory_reserved"),
    *("torch.cuda.max_memory_allocated", "torch.cuda.mem_get_info", "torch.cuda.memory_stats"),
}
# Methods without arguments that tell how far something local is.
PROGRESS = {"done", "query", "is_alive", "qsize", "getsockname"}
QUEUE = re.compile(r"queue|(?:^|[._])q$")
FREE_PORTS = {
    *("find_free_port", "get_free_port", "get_open_port", "pick_free_port", "free_port"),
    *("find_available_port", "get_random_port"),
}
# Draws from the generator of the process.
CHANCE = {
    *("random.random", "random.uniform", "random.randint", "random.randrange", "random.choice", "random.getrandbits"),
    *(
        f"numpy.random.{name}"
        for name in ("random", "rand", "uniform", "randint", "choice", "binomial", "random_sample")
    ),
    *("torch.rand", "torch.randint", "torch.bernoulli"),
}
DRAWS = frozenset({"uniform_", "bernoulli_", *(name.rpartition(".")[2] for name in CHANCE)})
COUNTS = {"numel", "size", "any", "all", "item"}  # what a rank learns of its own tensor
FILTERS = {"sum", "nonzero", "where", "numel", "any", "argwhere", "masked_select", "unique"}
STOPS = {"should_stop", "should_training_stop", "should_epoch_stop"}
NAN_TESTS = {"isnan", "isfinite", "isinf"}
IS_THERE = {"exists", "is_file", "isfile", "is_dir", "isdir", "stat", "iterdir", "glob", "listdir"}
LISTS_FOLDER = {"os.listdir", "os.scandir", "glob.glob", "glob.iglob"}
# Names in a condition that asks whether there are other ranks at all.
SINGLE = {
    *("is_initialized", "is_available", "world", "world_size", "get_world_size", "num_processes", "is_distributed", "distributed", "nnodes"),
    *("num_nodes", "n_gpu", "num_gpus", "is_dist_initialized", "is_dist_avail_and_initialized", "use_distributed"),
}  # fmt: skip
IS_DISTRIBUTED = re.compile(
    r"_?(?:is_|use_)?(?:distributed|dist|ddp|multi_?gpu|parallel|debug)(?:_training|_run|_mode)?"
)
# What ends the process: a rank that does so is gone, and the launcher ends the others.
ENDS_PROCESS = {"sys.exit", "exit", "quit", "os._exit", "os.abort", "pytest.skip", "pytest.exit", "pytest.fail"}


@cache
def collective(name: str) -> Collective | None:
    """What a full name such as `torch.distributed.all_reduce` is as a collective; None: it is none."""
    module, _, last = name.rpartition(".")
    if module in _MODULES:
        if last in _MAKES_GROUPS:
            return Collective("new_group")
        return _OPS.get(last)
    if module in (
        "torch.distributed._functional_collectives",
        "torch.distributed.nn.functional",
        "torch.distributed.nn",
    ):
        return _FUNCTIONAL.get(last) or _OPS.get(last)
    if module in ("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras"):
        return _ON["hvd"].get(last)
    if module == "mpi4py.MPI.COMM_WORLD":
        return _ON["mpi"].get(last)
    if name in CHECKPOINTS:
        return Collective(CHECKPOINTS[name])
    if name in OF_LIBRARIES:
        return OF_LIBRARIES[name]
    if name in MESHES:
        return Collective("device_mesh")
    if name.startswith("accelerate.utils.") and last in (
        "gather",
        "reduce",
        "broadcast",
        "gather_object",
        "wait_for_everyone",
    ):
        return Collective(
            "barrier" if last.startswith("wait") else _OPS[last].op if last in _OPS else "all_gather", -1, (), True
        )
    if module == "accelerate.utils" and last in ("broadcast_object_list", "pad_across_processes"):
        return Collective("broadcast" if last[0] == "b" else "all_gather", -1, (0,), True)
    return None


_MODULES = {
    _DIST,
    f"{_DIST}.distributed_c10d",
    "deepspeed.comm",
    "deepspeed.comm.comm",
    "composer.utils.dist",
    "mmengine.dist",
    "mmengine.dist.dist",
}


@cache
def method(owner: str, name: str) -> Collective | None:
    """What the method `name` is on an object that is called `owner`: `accelerator.gather`, `self.trainer.strategy.barrier`."""
    if name in METHODS:
        return METHODS[name]
    last = owner.rpartition(".")[2]
    for sort, names in _NAMED_SO.items():
        if last in names and name in _ON[sort]:
            return _ON[sort][name]
    return None


def is_of_job(path: str) -> bool:
    """Whether an object knows the number of the rank among all, by what it is called: an accelerator, a trainer."""
    last = path.rpartition(".")[2]
    return any(last in _NAMED_SO[sort] for sort in ("accelerator", "strategy", "trainer", "fabric"))


def is_method(path: str) -> bool:
    """Whether a path is a method that is a collective."""
    owner, _, name = path.rpartition(".")
    return bool(owner) and method(owner, name) is not None


def of_sort(sort: str, name: str) -> Collective | None:
    """What the method `name` is on an object that was made by a wrapper of this sort."""
    return _ON.get(sort, {}).get(name) or METHODS.get(name)


@cache
def rank_kind(name: str) -> str | None:
    """What a name says of the rank: zero, local zero, last, rank, local, other or stage; None: nothing."""
    if "lora" in name.lower() or name.endswith(
        ("_only", "_first_rank", "_last_rank")
    ):  # of a matrix; a setting; a stage
        return None
    kind = kind_of_name(name)
    if kind is None and _ZERO.fullmatch(name):
        return "zero"
    if kind is None and name in _RANKS:
        return "rank"
    if kind is None and _STAGE.fullmatch(name):
        return "stage"
    return None if kind == "world" else kind


# Layers of torch that have no parameters: whether they run is nothing to the others.
_WITHOUT_PARAMETERS = re.compile(
    r"torch\.nn\.(?:\w*(?:Loss|Pool[123]d|Pad[123]d|Dropout[123]?d?|ReLU6?|GELU|SiLU|ELU|CELU|SELU|GLU|Mish|Softmax\w*|LogSoftmax|Softmin|Sigmoid"
    r"|Tanh|Hardtanh|Hardswish|Softplus|Softsign|Threshold|Identity|Flatten|Unflatten|Fold|Unfold|PixelShuffle|PixelUnshuffle|Upsample\w*"
    r"|CosineSimilarity|PairwiseDistance|Shrink\w*))"
)


def is_of_test(path: str, code: str) -> bool:
    """Whether a finding is of a kind that tests make on purpose."""
    return code in _NOT_IN_TESTS and _TEST.fullmatch(path) is not None


@cache
def has_parameters(layer: str) -> bool:
    """Whether a layer of torch has parameters."""
    return _WITHOUT_PARAMETERS.fullmatch(layer) is None


MEETS = frozenset({*_OPS, *METHODS, *(full.rpartition(".")[2] for full in OF_LIBRARIES)}) - {"save", "report"}
# A test that catches what fails, plays ranks with threads, or is one node.
_NOT_IN_TESTS = {"LNT106", "LNT111", "LNT113", "LNT203", "LNT206", "LNT405", "LNT415", "LNT416"}
_TEST = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test\.py|conftest\.py)")
NAMES = frozenset({*_OPS, *_MAKES_GROUPS, *_FUNCTIONAL, *METHODS})
_RANKS = (
    "get_rank",
    "get_node_local_rank",
    "get_local_rank",
    "get_global_rank",
    "get_coordinate",
    "global_ordinal",
    "get_ordinal",
    "proc_id",
)
# Whether the ranks of a pipeline's first or last stage are meant; a stage alone may be one of a network.
_STAGE = re.compile(r"_?is_(?:(?:pipeline|pp)_(?:first|last)_stage|(?:first|last)_(?:pipeline|pp)_(?:stage|rank))")
_ZERO = re.compile(
    r"_?(?:is|if)_(?:leader|coordinator|primary|root|chief|logging_process|root_rank|first_worker|main_worker|dp_rank_0|main_process|head_rank)"
)
# Names of calls that are, or make, or hide collectives.
WORDS = frozenset({
    *_OPS, *_MAKES_GROUPS, *_FUNCTIONAL, *METHODS, *(name for methods in _ON.values() for name in methods),
    *(name for methods in HIDDEN.values() for name in methods if name not in ("()", "forward", "step")),
    *(full.rpartition(".")[2] for full in (*WRAPPERS, *CHECKPOINTS, *MESHES, *OF_LIBRARIES)), "DDP", "FSDP", "prepare", "setup",
    "Thread", "DataLoader", "init_process_group", "submit", "Timer", "register", "signal", "finalize", "log", "log_dict",
    *STOPS, *IN_TURNS,
})  # fmt: skip

# A file without any of these in it, or the experts of an object, and which calls nobody that has, cannot make a finding.
HINTS = b"""
    Distributed distributed num_replicas accelerat lightning deepspeed Fabric fabric FSDP DDP fully_shard all_reduce all_gather
    barrier horovod mpi4py ignite composer. ray.train ray.air torch_xla torchmetrics detectron2 is_main_process
    is_world_process_zero is_global_zero experts[ layer_drop layerdrop NCCL_ TORCH_NCCL GLOO_ CUDA_VISIBLE retain_graph
    detect_anomaly process_group wait_for_everyone sync_dist should_training_stop signal.signal(
""".split()
