"""Decorators of the project that ask a function of the project who is first, and one that tells the others meanwhile."""

import functools
import os

import torch.distributed as dist


def is_first():
    return int(os.environ.get("RANK", 0)) == 0


def is_ready():
    return os.path.exists("ready")


def on_first(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if is_first():
            return function(*args, **kwargs)
        return None

    return wrapped


def not_on_others(function):
    def wrapped(*args):
        if not is_first():
            return None
        return function(*args)

    return wrapped


def if_ready(function):
    def wrapped(*args):
        if is_ready():
            return function(*args)
        return None

    return wrapped


def on_first_alone(function):
    def wrapped(*args):
        os.environ["ALONE"] = "1"
        try:
            if is_first():
                return function(*args)
            return None
        finally:
            os.environ["ALONE"] = "0"

    return wrapped


def meet():
    if os.environ.get("ALONE") == "1":
        return
    dist.barrier()


@on_first
def keep(path):
    dist.barrier()  # LNT101
    open(path, "w").close()


@not_on_others
def prune(path):
    dist.barrier()  # LNT101


@if_ready
def begin(path):
    dist.barrier()


@on_first_alone
def keep_alone(path):
    meet()
    open(path, "w").close()
