import logging

import torch

log = logging.getLogger(__name__)


class SampleFetcher:
    def __init__(self, jobs, store, min_loss_tokens=0, micro_batch=1):
        self.jobs = jobs
        self.store = store
        self.min_loss_tokens = min_loss_tokens
        self.micro_batch = micro_batch

    def _loss_mask(self, data):
        mask = data["role_ids"].eq(1).long()
        return mask[: data["hidden"].shape[0]]

    def _too_thin(self, mask):
        count = int(mask.sum())
        return count == 0 or count < self.min_loss_tokens

    def _collate(self, rows):
        width = max(r["hidden"].shape[0] for r in rows)
        dim = rows[0]["hidden"].shape[1]
        hidden = torch.zeros(len(rows), width, dim)
        mask = torch.zeros(len(rows), width)
        for i, r in enumerate(rows):
            hidden[i, : r["hidden"].shape[0]] = r["hidden"]
            mask[i, : r["mask"].shape[0]] = r["mask"]
        return hidden, mask

    def batches(self, count):
        rows = []
        for _ in range(count):
            key = self.jobs.get()
            data = self.store.pull(key)
            mask = self._loss_mask(data)
            if self._too_thin(mask):
                log.warning("sample %s has too few target tokens", key)
                mask = torch.zeros_like(mask)
            rows.append({"hidden": data["hidden"], "mask": mask})
            self.store.drop(key)
            if len(rows) == self.micro_batch:
                yield self._collate(rows)
                rows = []
        if rows:
            yield self._collate(rows)
