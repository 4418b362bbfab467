import json
import random
from dataclasses import dataclass
from typing import Iterator, List, Union

import torch
import torch.distributed as dist


@dataclass
class StaticBatching:
    batch_size: int


@dataclass
class LengthBatching:
    max_num_elements: int


Batching = Union[StaticBatching, LengthBatching]

class Gang:
    def __init__(self):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = torch.device("cuda", torch.cuda.current_device())

    def all_have(self, flag: bool) -> bool:
        t = torch.tensor([int(flag)], device=self.device)
        dist.all_reduce(t, op=dist.ReduceOp.MIN)
        return bool(t.item())


class InstructionReader:
    def __init__(self, path, tokenizer, gang, batching: Batching, max_seq_len, *, seed=2, drop_remainder=True):
        self.path = path
        self.tokenizer = tokenizer
        self.gang = gang
        self.batching = batching
        self.max_seq_len = max_seq_len
        self.seed = seed
        self.drop_remainder = drop_remainder
        self.sync_batches = gang.size > 1 and isinstance(batching, LengthBatching)
        self.epoch = 0

    def _lines(self) -> List[dict]:
        with open(self.path) as f:
            rows = [json.loads(line) for line in f]
        random.Random(self.seed + self.epoch).shuffle(rows)
        even = len(rows) - len(rows) % self.gang.size
        return rows[self.gang.rank : even : self.gang.size]

    def _examples(self) -> Iterator[dict]:
        for row in self._lines():
            src = self.tokenizer.encode(row["src"])
            tgt = self.tokenizer.encode(row["tgt"], add_special_tokens=False) + [self.tokenizer.eos_token_id]
            if len(src) + len(tgt) > self.max_seq_len:
                continue
            yield {"ids": src + tgt, "prompt_len": len(src)}

    def _full(self, bucket: List[dict], example: dict) -> bool:
        if isinstance(self.batching, StaticBatching):
            return len(bucket) == self.batching.batch_size
        longest = max(len(e["ids"]) for e in bucket + [example])
        return longest * (len(bucket) + 1) > self.batching.max_num_elements

    def _buckets(self) -> Iterator[List[dict]]:
        bucket: List[dict] = []
        for example in self._examples():
            if bucket and self._full(bucket, example):
                yield bucket
                bucket = []
            bucket.append(example)
        if bucket and not self.drop_remainder:
            yield bucket

    def _collate(self, bucket):
        longest = max(len(e["ids"]) for e in bucket)
        ids = torch.full((len(bucket), longest), self.tokenizer.pad_token_id)
        labels = torch.full((len(bucket), longest), -100)
        for i, e in enumerate(bucket):
            n = len(e["ids"])
            ids[i, :n] = torch.tensor(e["ids"])
            labels[i, e["prompt_len"] : n] = torch.tensor(e["ids"][e["prompt_len"] :])
        mask = (torch.arange(longest) < torch.tensor([[len(e["ids"])] for e in bucket])).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def __iter__(self):
        buckets = self._buckets()
        while True:
            bucket = next(buckets, None)
            if self.sync_batches:
                if not self.gang.all_have(bucket is not None):
                    break
            elif bucket is None:
                break
            yield self._collate(bucket)
        self.epoch += 1
