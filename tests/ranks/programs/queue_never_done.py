"""All work is done; rank 0 waits for its queue to be emptied, and the thread that failed to handle an item never says that it is done."""

import queue
import threading

import toy


def upload(items):
    while True:
        item = items.get()
        try:
            if item == "last":
                raise OSError("too large")
            items.task_done()
        except OSError as error:
            print(f"not uploaded: {error}", flush=True)


def main():
    rank = toy.begin()
    items = queue.Queue()
    threading.Thread(target=upload, args=(items,), daemon=True).start()
    toy.train(rank, steps=20)
    toy.end()
    if rank == 0:
        items.put("first")
        items.put("last")
        items.join()  # culprit
    print(f"rank {rank}: done", flush=True)


main()
