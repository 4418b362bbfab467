import itertools
from collections import defaultdict

import torch


REQUEST_KIND = {
    "loglikelihood": "loglikelihood",
    "multiple_choice": "loglikelihood",
    "generate_until": "generate_until",
}


class Request:
    def __init__(self, task, doc_id, args):
        self.task, self.doc_id, self.args = task, doc_id, args
        self.answers = []


class Task:
    def __init__(self, name, docs, output_kind, build):
        self.name, self.docs = name, docs
        self.output_kind = output_kind
        self.build = build

    def requests(self, limit, rank, world_size):
        docs = itertools.islice(enumerate(self.docs[:limit]), rank, None, world_size)
        return [Request(self.name, i, args) for i, doc in docs for args in self.build(doc)]


class Grader:
    """Collects the requests of several tasks and runs them on a language model."""

    def __init__(self, lm, accelerator, limit=None):
        self.lm = lm
        self.accelerator = accelerator
        self.limit = limit

    def collect(self, tasks):
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        requests, missing = defaultdict(list), defaultdict(int)
        for task in tasks:
            kind = REQUEST_KIND[task.output_kind]
            mine = task.requests(self.limit, rank, world_size)
            requests[kind].extend(mine)
            if world_size > 1:
                count = torch.tensor(len(mine), device=self.accelerator.device)
                counts = self.accelerator.gather(count).cpu().tolist()
                missing[task.output_kind] += max(counts) - counts[rank]
        return requests, missing

    def run(self, tasks):
        requests, missing = self.collect(tasks)
        for kind, items in requests.items():
            work = list(items)
            work.extend(itertools.repeat(items[-1], missing[kind]))
            answers = getattr(self.lm, kind)([r.args for r in work])
            for request, answer in zip(items, answers):
                request.answers.append(answer)
            self.accelerator.wait_for_everyone()
        return requests
