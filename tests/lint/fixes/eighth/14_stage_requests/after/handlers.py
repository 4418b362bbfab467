import os

import torch
import torch.distributed as dist


class Handlers:
    def __init__(self, model, out):
        self.model = model
        self.out = out
        self.pending = []
        self.table = {"generate": self.generate, "save_weights": self.save_weights, "stop": self.stop}
        self.stopped = False

    def generate(self, request):
        self.pending.append(request["prompt"])

    def save_weights(self, request):
        os.makedirs(self.out, exist_ok=True)
        torch.save(self.model.state_dict(), os.path.join(self.out, f"stage_{dist.get_rank()}.pt"))
        dist.barrier()

    def stop(self, request):
        self.stopped = True

    def dispatch(self, requests):
        for request in requests:
            self.table[request["kind"]](request)
