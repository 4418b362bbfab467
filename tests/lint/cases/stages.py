"""Parts of the ranks that have work of their own: what they make of it must keep to their group. Properties that meet in what they call."""

import functools
import os

import torch
import torch.distributed as dist


class Stages:
    def __init__(self, count):
        self.count = count
        self.index = dist.get_rank() // (dist.get_world_size() // count)
        self.group = dist.new_group(list(range(dist.get_world_size())))
        self.has_log = os.path.isdir("log")
        self.leads_here = dist.get_rank() == 0 if count > 1 else True

    @property
    def is_last(self):
        return self.index == self.count - 1

    @property
    def leads(self):
        return self.leads_here

    @property
    def logs(self):
        return self.has_log


def weights(names, group=None):
    group = group or dist.group.WORLD
    for name in names:
        box = [torch.load(name)]
        dist.broadcast_object_list(box, src=0, group=group)
        yield box[0]


def weights_of_all(names):
    group = dist.group.WORLD
    for name in names:
        box = [torch.load(name)]
        dist.broadcast_object_list(box, src=0, group=group)
        yield box[0]


class Runner:
    def __init__(self, names):
        self.stages = Stages(4)
        self.names = names

    def loads_for_some(self):
        if self.stages.is_last:
            list(weights_of_all(self.names))  # LNT101

    def loads_in_their_group(self):
        if self.stages.is_last:
            list(weights(self.names, self.stages.group))

    def loads_for_all(self):
        state = list(weights_of_all(self.names))
        if self.stages.is_last:
            print(len(state))

    def loads_where_it_leads(self):
        if self.stages.leads:
            list(weights_of_all(self.names))  # far LNT101

    def loads_by_a_setting(self):
        if self.stages.logs:
            list(weights_of_all(self.names))


class Strategy:
    def share(self, value):
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def told(self, value):
        return f"{value}"


class Engine:
    def __init__(self, root):
        self.root, self.strategy = root, Strategy()

    @property
    def folder(self):
        return self.strategy.share(self.root)

    @property
    def own_folder(self):
        return self.strategy.told(self.root)


def first_alone(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        if int(os.environ.get("RANK", "0")) == 0:
            return function(*args, **kwargs)
        return None

    return inner


def first_of_all(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        if os.environ["RANK"] == "0":
            return function(*args, **kwargs)
        return None

    return inner


def in_debug(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        if int(os.environ.get("DEBUG", "0")) == 0:
            return function(*args, **kwargs)
        return None

    return inner


class Task:
    @first_alone
    def begins(self, engine):
        os.makedirs(engine.folder)  # LNT101

    @first_of_all
    def begins_so(self, engine):
        os.makedirs(engine.folder)  # LNT101

    @first_alone
    def begins_on_its_own(self, engine):
        os.makedirs(engine.own_folder)

    @in_debug
    def begins_everywhere(self, engine):
        os.makedirs(engine.folder)

    def begins_together(self, engine):
        self.writes(engine.folder)

    @first_alone
    def writes(self, folder):
        os.makedirs(folder)
