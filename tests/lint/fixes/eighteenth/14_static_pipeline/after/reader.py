from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class FixedBatching:
    size: int = 16


@dataclass
class ElementBatching:
    max_elements: int = 8192


class BatchReader:
    def __init__(self, pipeline, team, num_accumulate=1, in_step=True):
        self.pipeline = pipeline
        self.team = team
        self.num_accumulate = num_accumulate
        self.in_step = in_step and team.size > 1

    def __iter__(self):
        source = iter(self.pipeline())
        while True:
            batches = []
            for _ in range(self.num_accumulate):
                batch = next(source, None)
                if batch is None:
                    break
                batches.append(batch)
            if not self.in_step:
                if not batches:
                    return
                yield batches
                continue
            count = torch.tensor(len(batches), device=self.team.device)
            dist.all_reduce(count, op=dist.ReduceOp.MIN)
            if count.item() == 0:
                return
            yield batches[: int(count)]
