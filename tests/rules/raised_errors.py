"""Functions that raise what the tables of remedies know: each is named after its row, with `__` before what tells two of them apart; `nothing__`: no row."""

from __future__ import annotations

import asyncio
import heapq
import json
import multiprocessing
import pickle
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

_ONE = nn.Parameter(torch.ones(()))


def _net() -> nn.Linear:
    return nn.Linear(2, 2)


def inference_tensor() -> None:
    with torch.inference_mode():
        made = torch.ones(2, 2)
    _net()(made).sum().backward()


def inference_tensor__in_place() -> None:
    with torch.inference_mode():
        made = torch.ones(2)
    made.add_(1)


def inference_tensor__requires_grad() -> None:
    with torch.inference_mode():
        made = torch.ones(2)
    made.requires_grad_()


def equal_priorities() -> None:
    waiting: queue.PriorityQueue[Any] = queue.PriorityQueue()
    for number in range(3):
        waiting.put((0.5, torch.full((3,), float(number))))


def equal_priorities__of_objects() -> None:
    waiting: queue.PriorityQueue[Any] = queue.PriorityQueue()
    for number in range(3):
        waiting.put((0.5, {"reward": number}))


def equal_priorities_of_a_heap() -> None:
    heap: list[Any] = []
    for number in range(3):
        heapq.heappush(heap, (0.5, {"reward": number}))


def nothing__less_than() -> None:
    sorted([{"a": 1}, {"b": 2}])  # type: ignore[type-var]


def graph_twice() -> None:
    loss = (_net()(torch.ones(2)) ** 2).sum()
    loss.backward()
    loss.backward()


def changed_output() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y.add_(1)
    y.sum().backward()


def leaf_in_place() -> None:
    torch.ones(2, requires_grad=True).add_(1)


def view_in_place() -> None:
    for part in (torch.ones(4, requires_grad=True) * 2).chunk(2):
        part.add_(1)


def unused_in_grad() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    torch.autograd.grad(x.sum(), y)


def numpy_of_grad() -> None:
    torch.ones(2, requires_grad=True).numpy()


def deepcopy_of_graph() -> None:
    import copy

    copy.deepcopy(torch.ones(2, requires_grad=True) * 2)


def recomputed_otherwise() -> None:
    calls: list[int] = []

    def part(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin().sin() if len(calls) == 1 else x.sin()

    checkpoint(part, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()


def recomputed_otherwise__shapes() -> None:
    calls: list[int] = []

    def part(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x if len(calls) == 1 else x[:1]).sin()

    checkpoint(part, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()


def backward_of_function() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: int) -> torch.Tensor:
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    Twice.apply(torch.ones(2, requires_grad=True), 2).sum().backward()


def embedding_range() -> None:
    nn.Embedding(4, 2)(torch.tensor([5]))


def unscaled_twice() -> None:
    scaler, optimizer, loss = torch.amp.GradScaler("cpu"), torch.optim.SGD([_ONE]), _ONE * 2
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def stepped_twice() -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([_ONE])
    scaler.scale(_ONE * 2).backward()
    scaler.step(optimizer)
    scaler.step(optimizer)


def no_inf_checks() -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([nn.Parameter(torch.ones(1))])
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)


def scaler_without_loss() -> None:
    torch.amp.GradScaler("cpu").update()


def half_parameters() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight])
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)


def optimizer_state_sizes() -> None:
    torch.optim.SGD(_net().parameters()).load_state_dict(torch.optim.SGD([_ONE]).state_dict())


def optimizer_state_sizes__count() -> None:
    many = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1))]}])
    torch.optim.SGD([_ONE]).load_state_dict(many.state_dict())


def parameter_in_two_groups() -> None:
    torch.optim.SGD([{"params": [_ONE]}, {"params": [_ONE]}])


def initial_rate_missing() -> None:
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD([_ONE]), 1, last_epoch=3)


def steps_beyond_schedule() -> None:
    optimizer = torch.optim.SGD([_ONE], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)
    for _ in range(3):
        optimizer.step()
        scheduler.step()


def closure_missing() -> None:
    torch.optim.LBFGS([_ONE]).step()


def plateau_metric() -> None:
    torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([_ONE])).step()


def keys_with_module() -> None:
    _net().load_state_dict({f"module.{k}": v for k, v in _net().state_dict().items()})


def keys_of_compiled() -> None:
    _net().load_state_dict({f"_orig_mod.{k}": v for k, v in _net().state_dict().items()})


def keys_without_module() -> None:
    nn.ModuleDict({"module": _net()}).load_state_dict(_net().state_dict())


def nothing__size_mismatch() -> None:
    _net().load_state_dict(nn.Linear(3, 2).state_dict())


def collate_sizes() -> None:
    next(iter(DataLoader([torch.ones(2), torch.ones(3)], batch_size=2)))


def collate_sizes__in_worker() -> None:
    next(iter(DataLoader([torch.ones(2), torch.ones(3)], batch_size=2, num_workers=1)))


def collate_none() -> None:
    default_collate([None, None])


def collate_sizes__lists() -> None:
    default_collate([[1, 2], [1]])


def collate_object() -> None:
    default_collate([object()])


def sampler_and_shuffle() -> None:
    DataLoader(TensorDataset(torch.ones(2)), sampler=SequentialSampler([1, 2]), shuffle=True)


def batch_sampler() -> None:
    DataLoader(TensorDataset(torch.ones(2)), batch_sampler=[[0]], batch_size=2)


def stream_with_sampler() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any: ...

    DataLoader(Stream(), sampler=SequentialSampler([1]))


def stream_shuffled() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any: ...

    DataLoader(Stream(), shuffle=True)


def no_samples() -> None:
    DataLoader(TensorDataset(torch.ones(0)), shuffle=True)


def workers_options() -> None:
    DataLoader([1], prefetch_factor=2)


def workers_options__persistent() -> None:
    DataLoader([1], persistent_workers=True)


def local_function_sent__to_spawned() -> None:
    DataLoader([1], num_workers=1, collate_fn=lambda x: x, multiprocessing_context="spawn").__iter__()


def local_function_sent() -> None:
    def local() -> None: ...

    pickle.dumps(local)


def open_thing_sent() -> None:
    pickle.dumps(x for x in ())


def open_thing_sent__lock() -> None:
    import threading

    pickle.dumps(threading.Lock())


def no_process_group__sampler() -> None:
    DistributedSampler([1])


def no_process_group() -> None:
    torch.distributed.barrier()


def no_process_group__rank() -> None:
    torch.distributed.get_rank()


def no_process_group__ddp() -> None:
    nn.parallel.DistributedDataParallel(_net())


def nothing__no_address() -> None:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)


def nothing__no_rank() -> None:
    torch.distributed.init_process_group("gloo")


def nothing_to_reduce() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        nn.parallel.DistributedDataParallel(_net().requires_grad_(False))
    finally:
        torch.distributed.destroy_process_group()


def behind_the_wrapper() -> None:
    nn.DataParallel(_net()).generate  # noqa: B018


def second_process_group() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    finally:
        torch.distributed.destroy_process_group()


def half_and_float() -> None:
    _net().half()(torch.ones(2, 2))


def long_targets() -> None:
    F.cross_entropy(torch.ones(1, 2), torch.zeros(1, dtype=torch.int32))


def float_into_long() -> None:
    F.binary_cross_entropy_with_logits(torch.ones(2), torch.ones(2, dtype=torch.int64))


def double_input() -> None:
    nn.Conv1d(1, 1, 1)(torch.ones(1, 1, 4, dtype=torch.float64))


def embedding_of_floats() -> None:
    nn.Embedding(4, 2)(torch.ones(1))


def copy_out_of_meta() -> None:
    nn.Linear(2, 2, device="meta").to("cpu")


def item_of_meta() -> None:
    torch.ones(1, device="meta").item()


def one_value_per_channel() -> None:
    nn.BatchNorm1d(2)(torch.ones(1, 2))


def nothing__batch_norm_channels() -> None:
    nn.BatchNorm1d(2)(torch.ones(2, 3))


def target_range() -> None:
    F.cross_entropy(torch.ones(1, 2), torch.tensor([5]))


def target_count() -> None:
    F.cross_entropy(torch.ones(4, 2), torch.tensor([1, 1]))


def width_of_a_layer() -> None:
    _net()(torch.ones(1, 3))


def view_of_strided() -> None:
    torch.ones(2, 3).t().view(6)


def truth_of_a_tensor() -> None:
    bool(torch.ones(2))


def scalar_of_many() -> None:
    torch.ones(2).item()


def bincount_negative() -> None:
    torch.bincount(torch.tensor([-1]))


def sampling_nan() -> None:
    torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)


def one_hot_classes() -> None:
    F.one_hot(torch.tensor([5]), 3)


def tensor_of_tensors() -> None:
    torch.tensor([torch.ones(2), torch.ones(3)])


def bce_range() -> None:
    F.binary_cross_entropy(torch.tensor([1.5]), torch.tensor([1.0]))


def not_positive_definite() -> None:
    torch.linalg.cholesky(-torch.eye(2))


def singular_matrix() -> None:
    torch.linalg.inv(torch.zeros(2, 2))


def svd_of_nan() -> None:
    torch.linalg.svd(torch.full((2, 2), float("nan")))


def distribution_nan() -> None:
    torch.distributions.Normal(torch.tensor([float("nan")]), torch.ones(1))


def norm_not_finite() -> None:
    p = nn.Parameter(torch.ones(1))
    p.grad = torch.tensor([float("nan")])
    nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)


def nan_in_backward() -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.zeros(1, requires_grad=True)
        (x / x * 0).sqrt().sum().backward()


def unsafe_global(folder: Path) -> None:
    torch.save({"a": Path("x")}, folder / "x.pt")
    torch.load(folder / "x.pt", weights_only=True)


def pointer_of_lfs(folder: Path) -> None:
    (folder / "x.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    torch.load(folder / "x.pt", weights_only=False)


def half_a_checkpoint(folder: Path) -> None:
    torch.save({"a": torch.ones(1000)}, folder / "x.pt")
    data = (folder / "x.pt").read_bytes()
    (folder / "x.pt").write_bytes(data[: len(data) // 2])
    torch.load(folder / "x.pt")


def nothing__empty_file(folder: Path) -> None:
    (folder / "x.pt").write_bytes(b"")
    torch.load(folder / "x.pt")


def half_a_safetensors(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file({"a": torch.ones(100)}, folder / "x.safetensors")
    data = (folder / "x.safetensors").read_bytes()
    (folder / "x.safetensors").write_bytes(data[: len(data) // 2])
    load_file(folder / "x.safetensors")


def half_a_safetensors__empty(folder: Path) -> None:
    from safetensors.torch import load_file

    (folder / "x.safetensors").write_bytes(b"")
    load_file(folder / "x.safetensors")


def shared_tensors(folder: Path) -> None:
    from safetensors.torch import save_file

    a = torch.ones(2)
    save_file({"a": a, "b": a}, folder / "x.safetensors")


def not_contiguous_saved(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2, 3).t()}, folder / "x.safetensors")


def empty_json__half(folder: Path) -> None:
    (folder / "x.json").write_text('{"a": 1, "b')
    json.loads((folder / "x.json").read_text())


def empty_json(folder: Path) -> None:
    json.loads("")


def tensor_in_json() -> None:
    json.dumps({"a": torch.ones(1)})


def loop_runs_already() -> None:
    async def main() -> None:
        waiting = asyncio.sleep(0)
        try:
            asyncio.run(waiting)
        finally:
            waiting.close()

    asyncio.run(main())


def loop_closed() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    loop.call_soon(print)


def no_loop_in_thread__running() -> None:
    asyncio.get_running_loop()


def no_loop_in_thread() -> None:
    asyncio.set_event_loop(None)
    asyncio.get_event_loop()


def another_loop() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    future = first.create_future()

    async def main() -> None:
        await future

    try:
        second.run_until_complete(main())
    finally:
        first.close()
        second.close()


def another_loop__lock() -> None:
    lock = asyncio.Lock()

    async def hold() -> None:
        async with lock:
            await asyncio.wait_for(lock.acquire(), 0.01)

    async def again() -> None:
        await lock.acquire()
        await lock.acquire()

    try:
        asyncio.run(hold())
    except TimeoutError:
        pass
    asyncio.run(again())


def start_method() -> None:
    context = multiprocessing.context.DefaultContext(multiprocessing.get_context("fork"))
    context.set_start_method("fork")
    context.set_start_method("spawn")


def changed_in_iteration() -> None:
    d = {1: 1}
    for k in d:
        d[k + 1] = 1


def changed_in_iteration__deque() -> None:
    import collections

    d = collections.deque([1])
    for _ in d:
        d.append(1)


def stop_in_a_generator() -> None:
    def make() -> Any:
        yield next(iter(()))

    list(make())


def nothing__recursion() -> None:
    nothing__recursion()


def loss_without_graph() -> None:
    torch.ones(2).sum().backward()


def not_a_scalar() -> None:
    (_net()(torch.ones(2))).backward()


def grad_none() -> None:
    nn.Parameter(torch.ones(1)).grad.zero_()  # type: ignore[union-attr]


def parameter_assigned() -> None:
    m = nn.Module()
    m.a = nn.Parameter(torch.ones(1))
    m.a = torch.ones(1)


def before_module_init() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(1, 1)

    Net()


def mixed_dtensor() -> None:
    from torch.distributed.tensor import distribute_tensor, init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        distribute_tensor(torch.ones(2, 2), mesh) @ torch.ones(2, 2)
    finally:
        torch.distributed.destroy_process_group()


def mesh_of_more_ranks() -> None:
    from torch.distributed.tensor import init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        init_device_mesh("cpu", (2,))
    finally:
        torch.distributed.destroy_process_group()


def checkpoint_lacks_key(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.ones(1)}, checkpoint_id=folder / "c")
    dcp.load({"b": torch.ones(1)}, checkpoint_id=folder / "c")


def nothing__checkpoint_size(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.ones(1)}, checkpoint_id=folder / "c")
    dcp.load({"a": torch.ones(2)}, checkpoint_id=folder / "c")


def mask_dtype() -> None:
    F.scaled_dot_product_attention(
        torch.ones(1, 1, 2, 4),
        torch.ones(1, 1, 2, 4),
        torch.ones(1, 1, 2, 4),
        attn_mask=torch.ones(2, 2, dtype=torch.int64),
    )


def half_and_float__attention() -> None:
    F.scaled_dot_product_attention(torch.ones(1, 1, 2, 4).half(), torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4))


def lengths_order() -> None:
    from torch.nn.utils.rnn import pack_padded_sequence

    pack_padded_sequence(torch.ones(2, 2), torch.tensor([0, 2]), batch_first=True)


def shorter_than_kernel() -> None:
    nn.Conv1d(1, 1, 5)(torch.ones(1, 1, 2))


def reduced_empty() -> None:
    torch.ones(0).max()


def nothing__cat_sizes() -> None:
    torch.cat([torch.ones(2, 2), torch.ones(2, 3)])


def empty_list__stack() -> None:
    torch.stack([])


def empty_list() -> None:
    torch.cat([])


def empty_batch() -> None:
    numpy.stack([])


def empty_batch__joined() -> None:
    numpy.concatenate([])


def split_lengths() -> None:
    torch.utils.data.random_split([1, 2, 3], [1, 1])


def nothing__int_of_nan() -> None:
    torch.tensor(float("nan")).half().to(torch.int64)
    int(float("nan"))


def none_in_a_tensor() -> None:
    torch.as_tensor([1, None])


def negative_stride() -> None:
    import numpy as np

    torch.from_numpy(np.ones(2)[::-1])


def array_of_objects() -> None:
    import numpy as np

    torch.from_numpy(np.array(["a"]))


def bfloat16_to_numpy() -> None:
    torch.ones(1, dtype=torch.bfloat16).numpy()


def local_function_sent__rank() -> None:
    torch.multiprocessing.spawn(lambda r: None, nprocs=1)


def lengths_zero() -> None:
    nn.utils.rnn.pack_padded_sequence(torch.ones(2, 2), torch.tensor([2, 0]), batch_first=True)


def changed_parameter() -> None:
    first, second = _net(), _net()
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
    loss = second(first(torch.ones(1, 2))).sum()
    second.weight.grad = second.bias.grad = None
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


def changed_buffer() -> None:
    scale = torch.ones(2)
    loss = (torch.ones(2, requires_grad=True) * scale).sum()
    scale.copy_(torch.zeros(2))
    loss.backward()


def checkpoint_with_grad() -> None:
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(checkpoint(torch.sin, x, use_reentrant=True).sum(), x)


def grad_of_no_grad() -> None:
    w = torch.ones(1, requires_grad=True)
    torch.autograd.grad(w.sum(), torch.ones(1))


def no_parameters() -> None:
    torch.optim.SGD([])


def non_leaf_optimized() -> None:
    torch.optim.SGD([torch.ones(1, requires_grad=True) * 1])


def sparse_gradients() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    torch.optim.Adam(table.parameters()).step()


def half_and_float__convolution() -> None:
    nn.Conv1d(1, 1, 1).half()(torch.ones(1, 1, 4))


def nothing__matmul_of_whole_numbers() -> None:
    _net()(torch.ones(1, 2, dtype=torch.int64))


def nothing__shapes() -> None:
    torch.ones(2) + torch.ones(3)


def keys_into_compiled() -> None:
    nn.ModuleDict({"_orig_mod": _net()}).load_state_dict(_net().state_dict())


def keys_of_lightning() -> None:
    _net().load_state_dict({f"model.{k}": v for k, v in _net().state_dict().items()})


def nothing__missing_keys() -> None:
    _net().load_state_dict({})


def vocabulary_size() -> None:
    nn.ModuleDict({"lm_head": _net()}).load_state_dict(nn.ModuleDict({"lm_head": nn.Linear(2, 3)}).state_dict())


def page_in_place_of_file(folder: Path) -> None:
    (folder / "x.pt").write_bytes(b"<html>")
    torch.load(folder / "x.pt", weights_only=False)


def safetensors_header(folder: Path) -> None:
    from safetensors.torch import load_file

    (folder / "x.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    load_file(folder / "x.safetensors")


def half_a_checkpoint__pickle() -> None:
    pickle.loads(b"")


def half_a_zip(folder: Path) -> None:
    import zipfile

    (folder / "x.zip").write_bytes(b"PK")
    zipfile.ZipFile(folder / "x.zip")


def zip_shared(folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(folder / "x.zip", "w") as archive:
        archive.writestr("a", "b")
    archive = zipfile.ZipFile(folder / "x.zip")
    archive.fp.seek(5)  # type: ignore[union-attr]
    archive.infolist()[0].header_offset = 3
    archive.read("a")


def database_locked(folder: Path) -> None:
    import sqlite3

    first, second = (sqlite3.connect(folder / "x.db", timeout=0) for _ in range(2))
    first.execute("begin exclusive")
    second.execute("begin exclusive")


def ascii_locale() -> None:
    "\u00e9".encode().decode("ascii")


def loader_used_up() -> None:
    batches = iter([1])
    next(batches)
    next(batches)


def nothing__stop_iteration_raised() -> None:
    raise StopIteration


def nothing__another_key() -> None:
    {"PATH": ""}["rank"]


def names_of_old_numpy() -> None:
    import numpy as np

    np.object(1)  # type: ignore[attr-defined]


def nothing__name_of_numpy() -> None:
    import numpy as np

    np.nothing()  # type: ignore[attr-defined]


def not_awaited() -> None:
    async def work() -> int: ...

    waiting = work()
    try:
        waiting[0]  # type: ignore[index]
    finally:
        waiting.close()


def awaited_for_nothing() -> None:
    async def main() -> None:
        await None  # type: ignore[misc]

    asyncio.run(main())


def children_of_daemons() -> None:
    process = multiprocessing.current_process()
    process._config["daemon"] = True  # type: ignore[attr-defined]
    try:
        multiprocessing.get_context("fork").Process(target=print).start()
    finally:
        del process._config["daemon"]  # type: ignore[attr-defined]


def rank_not_in_group() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.distributed.get_group_rank(torch.distributed.new_group([0]), 3)
    finally:
        torch.distributed.destroy_process_group()


def group_of_more_ranks() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.distributed.new_group([0, 1])
    finally:
        torch.distributed.destroy_process_group()


def state_not_consolidated() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        ZeroRedundancyOptimizer(_net().parameters(), torch.optim.SGD, lr=0.1).state_dict()
    finally:
        torch.distributed.destroy_process_group()


def not_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        torch.ones(4).put_(torch.tensor([0]), torch.ones(1))
    finally:
        torch.use_deterministic_algorithms(False)


def metric_without_samples() -> None:
    from torchmetrics.utilities.data import dim_zero_cat

    dim_zero_cat([])


def _with_one_rank(call: Callable[[], object]) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        call()
    finally:
        torch.distributed.destroy_process_group()


def ddp_devices() -> None:
    _with_one_rank(lambda: nn.parallel.DistributedDataParallel(_net(), device_ids=[0]))


def ddp_many_devices() -> None:
    _with_one_rank(lambda: nn.parallel.DistributedDataParallel(_net(), device_ids=[0, 1]))


def ddp_lazy_modules() -> None:
    _with_one_rank(lambda: nn.parallel.DistributedDataParallel(nn.LazyLinear(2)))


def sync_batch_norm_on_host() -> None:
    _with_one_rank(lambda: nn.SyncBatchNorm(2)(torch.ones(2, 2)))


def batch_of_none() -> None:
    DataLoader([1], batch_size=0)


def sampler_without_epoch() -> None:
    DataLoader([1]).sampler.set_epoch(1)


def batch_moved_whole() -> None:
    [torch.ones(1)].to("cpu")


def ragged_list() -> None:
    torch.tensor([[1, 2], [1]])


def scheduler_verbose() -> None:
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD([_ONE]), 1, verbose=True)


def written_in_another_dtype() -> None:
    torch.ones(2).scatter_(0, torch.tensor([0]), torch.ones(1).half())


def written_in_another_dtype__index() -> None:
    torch.ones(2)[torch.tensor([0])] = torch.ones(1).half()


def index_dtype() -> None:
    torch.ones(2).gather(0, torch.ones(1))


def index_dtype__float() -> None:
    torch.ones(2)[torch.ones(1)]


def minus_of_bool() -> None:
    1 - torch.tensor([True])


def gradient_of_integers() -> None:
    nn.Parameter(torch.tensor([1]))


def mean_of_integers() -> None:
    torch.tensor([1]).mean()


def reduced_empty__item() -> None:
    torch.ones(0).item()
