"""Rank 1 waits in its fourth step for what somebody of its own process keeps: `keeps.py KIND`; with "sound" it is given back."""

import asyncio
import fcntl
import http.server
import multiprocessing
import queue
import sys
import threading
import time
from multiprocessing.pool import ThreadPool

import aiohttp
import filelock
import requests
import torch
import torch.distributed as dist
import toy

KIND, IS_SOUND = sys.argv[1], sys.argv[2:] == ["sound"]
HELD = threading.Lock()


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/late":
            time.sleep(2 if IS_SOUND else 600)
        page = b"page" * (1 << 20 if self.path == "/long" else 1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *args):
        pass


def serve(port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    port.put(server.server_address[1])
    server.serve_forever()


def address():
    """Of a server in a process of its own."""
    port = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(port,), daemon=True).start()
    return f"http://127.0.0.1:{port.get()}"


def size_of(session, url):
    page = session.get(url, stream=True)  # stream
    if page.status_code == 200 and not IS_SOUND:
        return int(page.headers["Content-Length"])
    return len(page.content)


def on_stream():
    """Pages are asked for, and not read: the pool of two connections is empty at the third."""
    session, url = requests.Session(), address()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=2, pool_block=True))
    for _ in range(3):
        size_of(session, url)


async def look(session, url):
    page = await session.get(url)
    if IS_SOUND:
        page.release()
    return page.status


async def pages(url):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=2)) as session:
        await look(session, url + "/long")
        await look(session, url + "/long")
        async with session.get(url + "/long") as page:  # tasks
            print(page.status, flush=True)


def on_tasks():
    asyncio.run(pages(address()))


def write_table(number):
    with open("table.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # twice
        print(number, flush=True)


def on_twice():
    with open("table.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if IS_SOUND:
            fcntl.flock(file, fcntl.LOCK_UN)
        write_table(3)


class Remote(torch.utils.data.Dataset):
    def __init__(self, url):
        self.url = url

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return len(requests.get(self.url + "/late").content)  # dataset


def on_dataset():
    for _ in torch.utils.data.DataLoader(Remote(address())):
        pass


def on_imports():
    sys.path.insert(0, __file__.rpartition("/")[0])
    import keeps_in_body

    print(keeps_in_body.TABLE)


class Buffers:
    def __init__(self):
        self.free = queue.Queue()
        for _ in range(2):
            self.free.put(bytearray(8))

    def fill(self, number):
        buffer = self.free.get()  # items
        if number % 2 and not IS_SOUND:
            return 0
        buffer[0] = number
        self.free.put(buffer)
        return 1


def on_items():
    buffers = Buffers()
    for number in range(6):
        buffers.fill(number)


def load(ready):
    if not IS_SOUND:
        try_to_read()
    ready.set()


def try_to_read():
    raise ValueError("no such table")


def watch(ready):
    try:
        load(ready)
    except ValueError as error:
        print(f"not loaded: {error}", flush=True)


def on_told():
    ready = threading.Event()
    threading.Thread(target=watch, args=(ready,), daemon=True).start()
    ready.wait()  # told


POOL = ThreadPool(2)


def part(number):
    return number * 2


def whole(number):
    time.sleep(0.2)
    if IS_SOUND:
        return part(number)
    return sum(POOL.map(part, range(number)))


def on_nested():
    POOL.map(whole, [3, 4])  # nested


def count_in_child():
    with HELD:
        print("counted", flush=True)


def on_forked():
    """A thread has the lock as the process is forked."""
    held = threading.Event()

    def hold():
        with HELD:
            held.set()
            time.sleep(2)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    if IS_SOUND:
        time.sleep(2.5)
    child = multiprocessing.get_context("fork").Process(target=count_in_child)
    child.start()
    child.join()  # forked


def write_all(items):
    while True:
        item = items.get()
        if item == "empty" and not IS_SOUND:
            continue
        items.task_done()


def on_done():
    items = queue.Queue()
    threading.Thread(target=write_all, args=(items,), daemon=True).start()
    for item in ("full", "empty"):
        items.put(item)
    items.join()  # done


def meet(gate):
    gate.wait()


def on_parties():
    gate = threading.Barrier(4)
    for _ in range(3 if IS_SOUND else 2):
        threading.Thread(target=meet, args=(gate,), daemon=True).start()
    gate.wait()  # parties


def make(batches):
    for _ in range(2 if IS_SOUND else 6):
        batches.put(torch.zeros(4))


def on_ends():
    batches = queue.Queue(maxsize=2)
    threading.Thread(target=make, args=(batches,)).start()
    batches.get()
    time.sleep(0.5)
    raise ValueError("a batch with no rows")  # raises


def with_lock(rank):
    """Rank 0 has the lock on a file while it waits for rank 1, which waits for the lock."""
    with filelock.FileLock("cache.lock"):  # lock
        if not IS_SOUND:
            dist.barrier()
    if IS_SOUND:
        dist.barrier()


def train(rank):
    weights = torch.zeros(4, 1)
    for number in range(6):
        if KIND == "lock" and number == 3:
            time.sleep(0 if rank == 0 else 1)
            with_lock(rank)
        elif rank == 1 and number == 3:
            globals()[f"on_{KIND}"]()
        toy.train_step(weights, toy.batch(rank))


if __name__ == "__main__":
    ranks_own = toy.begin()
    train(ranks_own)
    toy.end()
