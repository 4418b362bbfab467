"""Rank 3 waits for an upload to finish; the uploader never says so."""

import threading

import toy


def upload(done, broken):
    if not broken:
        done.set()


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(4):
        done = threading.Event()
        threading.Thread(target=upload, args=(done, rank == 3 and step == 2)).start()
        done.wait()  # culprit
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
