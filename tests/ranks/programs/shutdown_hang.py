"""All work is done, but a thread of rank 1 that nobody told to stop keeps the process alive."""

import threading

import toy


def report_metrics(stop):
    stop.wait()  # culprit


def main():
    rank = toy.begin()
    stop = threading.Event()
    threading.Thread(target=report_metrics, args=(stop,)).start()
    toy.train(rank, steps=20)
    toy.end()
    if rank != 1:
        stop.set()
    print(f"rank {rank}: done", flush=True)


main()
