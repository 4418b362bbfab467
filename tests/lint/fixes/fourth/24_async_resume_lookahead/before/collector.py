import threading
import time

import ray


@ray.remote
class TrajectoryCollector:
    def __init__(self, buffer, generate, max_age):
        self.buffer, self.generate, self.max_age = buffer, generate, max_age
        self.weight_version = 0
        self.lock = threading.Lock()
        threading.Thread(target=self._loop, daemon=True).start()

    def set_weight_version(self, version):
        with self.lock:
            self.weight_version = version

    def _targets(self):
        with self.lock:
            start = self.weight_version
        if start == 0:
            return list(range(0, self.max_age + 1))
        return list(range(start + 1, start + self.max_age + 1))

    def _loop(self):
        while True:
            for target in self._targets():
                if not ray.get(self.buffer.has_complete_batch.remote(target)):
                    ray.get(self.buffer.add.remote(target, self.generate(target)))
            time.sleep(0.1)
