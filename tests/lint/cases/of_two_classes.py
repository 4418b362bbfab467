"""An object is of one class on the first rank, and of another one elsewhere."""

import torch.distributed as dist


class Notes:
    def __init__(self, run):
        self.run = run

    def log(self, name, value):
        dist.all_reduce(value)
        self.run.log({name: value})

    def write(self, name, value):
        self.run.log({name: value})

    def meet(self):
        dist.barrier()


class NoNotes:
    def log(self, name, value):
        pass

    def write(self, name, value):
        pass

    def meet(self):
        dist.barrier()


def notes_of(run):
    if dist.get_rank() == 0:
        return Notes(run)
    return NoNotes()


def notes_by_setting(run, quiet):
    return NoNotes() if quiet else Notes(run)


def logs(run, batches):
    notes = notes_of(run)
    for x in batches:
        notes.log("loss", x)  # LNT101


def logs_of_expression(run, batches):
    notes = Notes(run) if dist.get_rank() == 0 else NoNotes()
    for x in batches:
        notes.log("loss", x)  # LNT101


def writes(run, batches):
    notes = notes_of(run)
    for x in batches:
        dist.all_reduce(x)
        notes.write("loss", x)


def meets(run, batches):
    notes = notes_of(run)
    for _ in batches:
        notes.meet()


def logs_by_setting(run, batches, quiet):
    notes = notes_by_setting(run, quiet)
    for x in batches:
        notes.log("loss", x)
