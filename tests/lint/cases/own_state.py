"""Flags of signals, files of one rank, what is in flight: each rank has its own."""

import os
import signal
import threading

import torch
import torch.distributed as dist

stop = False


def on_signal(number, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, on_signal)


def until_a_signal(x):
    for _ in range(100):
        dist.all_reduce(x)
        if stop:
            break  # LNT106


def until_all_have_it(x):
    for _ in range(100):
        dist.all_reduce(x)
        flag = torch.tensor(float(stop))
        dist.all_reduce(flag)
        if flag.item():
            break


class Preempted(SystemExit):
    """It ends a process well."""


class Loop:
    def __init__(self, model):
        self.model = model
        self.asked = False
        self.ongoing_writes = {}
        signal.signal(signal.SIGUSR1, self.ask)

    def ask(self, number, frame):
        self.asked = True

    def step(self, x):
        if self.asked:
            raise Preempted  # LNT106
        dist.all_reduce(x)

    def written(self, x):
        if not self.ongoing_writes:
            return  # LNT106
        dist.all_reduce(x)


def prepared(path, rank, x):
    if not os.path.exists(path):
        if rank == 0:
            torch.save(x, path)
        dist.barrier()  # LNT106


def prepared_by_all(path, rank, x):
    if rank == 0 and not os.path.exists(path):
        torch.save(x, path)
    dist.barrier()


def in_turns(path, rank, world):
    if os.path.exists(path):
        for turn in range(world):
            if turn == rank:
                torch.load(path)
            dist.barrier()


class Told:
    def __init__(self):
        self.rank, self.kept = dist.get_rank(), None

    @property
    def count(self):
        if self.kept is None:
            number = torch.tensor(1)
            dist.all_reduce(number)
            self.kept = number.item()
        return self.kept

    def show(self):
        if self.rank == 0:
            print(self.count)  # LNT101

    def show_on_all(self):
        count = self.count
        if self.rank == 0:
            print(count)


over = threading.Event()


def end(*_):
    over.set()


signal.signal(signal.SIGUSR1, end)


def until_it_is_over(x, steps):
    for _ in range(steps):
        dist.all_reduce(x)
        if over.is_set():
            break  # LNT106


begun = threading.Event()


def until_it_has_begun(x, steps):
    for _ in range(steps):
        dist.all_reduce(x)
        if begun.is_set():
            break


class Notice:
    """The signal leaves a note, not a flag."""

    def __init__(self):
        self.note, self.since = None, None
        signal.signal(signal.SIGUSR2, self.arrived)

    def arrived(self, number, frame):
        self.note = {"signal": number}

    def read(self):
        return self.note

    def read_together(self):
        box = [self.note]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def until_there_is_a_note(x, steps):
    notice = Notice()
    for _ in range(steps):
        dist.all_reduce(x)
        if notice.read() is not None:
            break  # LNT106


def until_the_note_is_taken(x, steps):
    notice = Notice()
    for _ in range(steps):
        dist.all_reduce(x)
        if (note := notice.note) is not None:
            print(note)
            return  # LNT106


def until_all_have_the_note(x, steps):
    notice = Notice()
    for _ in range(steps):
        dist.all_reduce(x)
        if notice.read_together() is not None:
            break


def a_note_that_is_shown(x, steps):
    notice = Notice()
    for _ in range(steps):
        dist.all_reduce(x)
        if notice.read() is not None:
            print("stopping soon")


class Loads:
    """A thread fills it, and nobody waits."""

    def __init__(self):
        self.held, self.is_ready, self.total = {}, False, 10

    def begin(self, key):
        def load():
            self.held[key] = open(key).read()
            self.is_ready = True

        threading.Thread(target=load, daemon=True).start()

    def room(self):
        return self.total - len(self.held)

    def one_by_one(self, x, keys):
        room = self.room()
        for key in keys:
            if len(key) > room:
                break  # LNT106
            dist.all_reduce(x)

    def those_that_are_there(self, x, keys):
        for key in keys:
            if key not in self.held:
                continue  # LNT106
            dist.all_reduce(x)

    def when_ready(self, x):
        if self.is_ready:
            dist.barrier()  # LNT106

    def when_all_are_ready(self, x):
        flag = torch.tensor(int(self.is_ready))
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if flag.item():
            dist.barrier()


class Awaited:
    """A thread fills it, and somebody waits for that."""

    def __init__(self):
        self.held, self.is_ready = {}, False

    def begin(self, key):
        self.thread = threading.Thread(target=self.load, args=(key,))
        self.thread.start()

    def load(self, key):
        self.held[key] = open(key).read()
        self.is_ready = True

    def all_of_them(self, x):
        self.thread.join()
        if self.is_ready:
            dist.all_reduce(x)


def begins_where_its_own_file_ends(folder, x):
    step, path = 0, os.path.join(folder, f"state_{dist.get_rank()}.pt")
    if os.path.exists(path):
        step = torch.load(path)["step"]
    while step < 100:
        dist.all_reduce(x)  # LNT106
        step += 1


def begins_where_its_own_file_ends_in_a_range(folder, rank, x):
    step, path = 0, folder / "state_{}.pt".format(rank)
    if path.exists():
        step = torch.load(path)["step"]
    for _ in range(step, 100):
        dist.all_reduce(x)  # LNT110


def begins_where_the_common_file_ends(folder, x):
    step, path = 0, os.path.join(folder, "state.pt")
    if os.path.exists(path):
        step = torch.load(path)["step"]
    while step < 100:
        dist.all_reduce(x)
        step += 1


def begins_where_all_files_end(folder, rank, x):
    step, path = 0, os.path.join(folder, f"state_{rank}.pt")
    found = torch.tensor(int(os.path.exists(path)))
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    if found.item():
        step = torch.load(path)["step"]
    while step < 100:
        dist.all_reduce(x)
        step += 1


def takes_up_its_own_numbers(folder, rank, x):
    path = os.path.join(folder, f"random_{rank}.pt")
    if os.path.exists(path):
        torch.set_rng_state(torch.load(path))
    dist.all_reduce(x)


def needs_its_own_file(folder, rank, x):
    path = os.path.join(folder, f"state_{rank}.pt")
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    dist.all_reduce(x)
