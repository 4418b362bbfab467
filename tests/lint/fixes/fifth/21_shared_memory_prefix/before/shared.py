import os
from multiprocessing.shared_memory import SharedMemory
from time import sleep

import numpy as np
from filelock import FileLock

TICK = 0.07


class SharedBarrier:
    def __init__(self, lock_path, shm_path):
        size = 3 * np.int32(0).nbytes
        try:
            self._shm = SharedMemory(shm_path, True, size)
        except FileExistsError:
            sleep(TICK)
            self._shm = SharedMemory(shm_path, False, size)
        os.makedirs(os.path.dirname(lock_path), exist_ok=True)
        self.lock = FileLock(lock_path)
        self._arr = np.ndarray(3, buffer=self._shm.buf, dtype=np.int32)

    def __call__(self, num_procs):
        with self.lock:
            self._arr[0] += 1
            if self._arr[0] == num_procs:
                self._arr[0] = 0
                self._arr[2] += 1
                return
            generation = int(self._arr[2])
        while self._arr[2] == generation:
            sleep(TICK)
