import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Instance:
    method: str
    args: tuple
    doc_id: int
    result: Any = None


class MultipleChoice:
    KIND = "multiple_choice"

    def __init__(self, name, path):
        self.name = name
        with open(path) as f:
            self.docs = [json.loads(line) for line in f]

    def build(self, rank, world):
        self.instances = []
        for i in range(rank, len(self.docs), world):
            doc = self.docs[i]
            for choice in doc["choices"]:
                self.instances.append(Instance("loglikelihood", (doc["question"], " " + choice), i))

    def score(self):
        by_doc = {}
        for inst in self.instances:
            by_doc.setdefault(inst.doc_id, []).append(inst.result)
        return [float(max(range(len(r)), key=r.__getitem__) == self.docs[i]["gold"]) for i, r in by_doc.items()]


class Continuation(MultipleChoice):
    KIND = "loglikelihood"

    def build(self, rank, world):
        rows = [(i, self.docs[i]) for i in range(rank, len(self.docs), world)]
        self.instances = [Instance("loglikelihood", (d["text"], d["last"]), i) for i, d in rows]

    def score(self):
        return [inst.result for inst in self.instances]
