import multiprocessing
import queue
import threading
import time

import torch
import torch.distributed as dist


class RemoteUploader:
    def __init__(self, upload_fn, num_workers=1):
        self.upload_fn = upload_fn
        self._exception_queue = multiprocessing.Queue()
        self._file_upload_queue = queue.Queue()
        self._logged_objects = {}
        self._object_lock = threading.Lock()
        self._enqueue_thread = threading.Thread(target=self._enqueue, daemon=True)
        self._enqueue_thread.start()
        self._workers = [threading.Thread(target=self._upload, daemon=True) for _ in range(num_workers)]
        for worker in self._workers:
            worker.start()

    def upload_file(self, remote_name, path):
        with self._object_lock:
            self._logged_objects[remote_name] = path

    def _enqueue(self):
        while True:
            with self._object_lock:
                for remote_name in list(self._logged_objects):
                    self._file_upload_queue.put((remote_name, self._logged_objects.pop(remote_name)))
            time.sleep(0.2)

    def _upload(self):
        while True:
            remote_name, path = self._file_upload_queue.get()
            try:
                self.upload_fn(remote_name, path)
            except Exception as e:
                self._exception_queue.put(e)

    def wait_for_workers(self, device):
        while self._exception_queue.empty():
            with self._object_lock:
                if len(self._logged_objects) == 0:
                    break
            time.sleep(0.2)
        while not self._file_upload_queue.empty() and self._exception_queue.empty():
            time.sleep(0.2)
        if not self._exception_queue.empty():
            raise self._exception_queue.get_nowait()
