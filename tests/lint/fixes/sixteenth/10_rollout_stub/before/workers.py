import queue
import threading

import torch


class LiveWorker:
    def __init__(self, folder):
        self.folder = folder
        self.queue = queue.Queue(maxsize=8)

    def start(self):
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self):
        while True:
            self.queue.put(torch.randn(64, 32))

    def take(self):
        return self.queue.get()


class RecordedWorker:
    def __init__(self, path):
        self.samples = torch.load(path)
        self.at = 0

    def start(self):
        self.at = 0

    def take(self):
        self.at += 1
        return self.samples[self.at % len(self.samples)]
