import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ray

DATA_PREP_ACTOR_NAME = "data_prep_singleton"


@ray.remote
class DataPreparationActor:
    def __init__(self, config, num_training_steps, inference_queue, collate):
        self.config = config
        self.num_training_steps = num_training_steps
        self.inference_queue = inference_queue
        self.collate = collate
        self.prepared_data = {}
        self.current_prepared_step = -1
        self._last_consumed_step = -1
        self.lock = threading.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._prep_future = self._executor.submit(self._loop)

    def _loop(self):
        for step in range(self.num_training_steps):
            while step - self._last_consumed_step > self.config.async_steps:
                time.sleep(0.1)
            results = [self.inference_queue.get() for _ in range(self.config.global_batch_size)]
            with self.lock:
                self.prepared_data[step] = self.collate(results)
                self.current_prepared_step = step

    def get_data(self, rank, step):
        while self.current_prepared_step < step:
            time.sleep(0.01)
        with self.lock:
            self._last_consumed_step = max(self._last_consumed_step, step)
            return self.prepared_data[step][rank]
