"""Collectives of further libraries, and modules that are known to be sharded by what is asked of them."""

import os
import pickle

import ignite.distributed as idist
import pytorch_lightning as pl
import ray.train
import torch
import torch.distributed as torch_dist
from composer.utils import dist
from mpi4py import MPI
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from transformers import TrainerCallback


def reports(loss):
    if ray.train.get_context().get_world_rank() == 0:
        ray.train.report({"loss": loss})  # LNT101


def reports_on_all(loss):
    ray.train.report({"loss": loss})


def sums(metric):
    if idist.get_rank() == 0:
        idist.all_reduce(metric)  # LNT101


def writes(state):
    if dist.get_global_rank() == 0:
        torch.save(state, "state.pt")
        dist.barrier()  # LNT101


def kept_on_disk(key, function, comm=MPI.COMM_WORLD):
    path = os.path.join("kept", key)
    if os.path.exists(path):
        return pickle.load(open(path, "rb"))  # LNT106
    value = function(key) if comm.rank == 0 else None
    if comm.rank == 0:
        pickle.dump(value, open(path, "wb"))
    return comm.bcast(value, root=0)


class Checkpointer:
    def save(self, model):
        if torch_dist.get_rank() == 0:
            with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                state = model.state_dict()  # LNT103
            torch.save(state, "state.pt")

    def save_together(self, model):
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            state = model.state_dict()
        if torch_dist.get_rank() == 0:
            torch.save(state, "state.pt")


class Samples(TrainerCallback):
    def on_evaluate(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            print(model.generate(kwargs["ids"]))  # LNT103

    def on_log(self, args, state, control, model=None, **kwargs):
        texts = model.generate(kwargs["ids"])
        if state.is_world_process_zero:
            print(texts)


def of_any_size(value, world_size):
    data = torch.ByteTensor(list(pickle.dumps(value)))
    outs = [torch.empty_like(data) for _ in range(world_size)]
    torch_dist.all_gather(outs, data)  # LNT303


def of_one_size(value, world_size, most):
    data = torch.ByteTensor(list(pickle.dumps(value)))
    if data.numel() != most:
        data = torch.cat((data, torch.zeros(most - data.numel(), dtype=torch.uint8)))
    outs = [torch.empty(most, dtype=torch.uint8) for _ in range(world_size)]
    torch_dist.all_gather(outs, data)


def of_those_with_labels(scores, labels, outs):
    keep = labels != -100
    torch_dist.all_gather(outs, scores[keep])  # LNT303


class Keeper(pl.Callback):
    @pl.utilities.rank_zero_only
    def on_fit_start(self, trainer, module):
        os.makedirs(trainer.log_dir, exist_ok=True)  # LNT101

    def on_fit_end(self, trainer, module):
        folder = trainer.log_dir
        if trainer.is_global_zero:
            print(folder, trainer.logger.log_dir, trainer.default_root_dir)

    def on_exception(self, trainer, module, exception):
        if trainer.is_global_zero:
            print("ended in", trainer.log_dir)  # LNT101
