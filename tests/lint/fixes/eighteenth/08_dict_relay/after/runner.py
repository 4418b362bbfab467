import torch
import torch.distributed as dist

from relay import relay_dict


class SliceRunner:
    """Runs one tensor-parallel slice of the model; the first rank holds the queue."""

    def __init__(self, model, tp_group, max_len=2048):
        self.model = model
        self.tp_group = tp_group
        self.driver = dist.get_global_rank(tp_group, 0)
        self.is_driver = dist.get_rank() == self.driver
        self.max_len = max_len

    def _prepare(self, requests):
        width = max(len(r["tokens"]) for r in requests)
        ids = torch.zeros(len(requests), width, dtype=torch.long)
        lens = torch.tensor([len(r["tokens"]) for r in requests])
        for row, request in enumerate(requests):
            ids[row, : len(request["tokens"])] = torch.tensor(request["tokens"])
        return {"ids": ids, "lens": lens, "is_prompt": True, "stop": False}

    @torch.inference_mode()
    def execute(self, requests=None):
        data = None
        if self.is_driver:
            data = self._prepare(requests) if requests else {"stop": True}
        data = relay_dict(data, self.driver, self.tp_group)
        if data["stop"]:
            return None
        ids, lens = data["ids"].cuda(), data["lens"].cuda()
        logits = self.model(ids[:, : self.max_len])
        last = logits[torch.arange(len(lens), device=lens.device), lens - 1]
        return last.argmax(-1).tolist()

    def serve(self, queue=None):
        while True:
            batch = queue.take() if self.is_driver else None
            tokens = self.execute(batch)
            if tokens is None:
                return
            if self.is_driver:
                queue.answer(batch, tokens)
