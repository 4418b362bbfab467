"""What is noted under a word that depends on the sample: one rank has other words, or the same in another order."""

import collections

import torch.distributed as dist


class Boxes:
    def scored(self, doc, answer):
        if not doc["boxes"]:
            return {"absent": float(not answer)}
        scores = {"present": float(bool(answer))}
        return scores


class Words:
    def scored(self, doc, answer):
        if "boxes" not in doc:
            return {"exact": float(doc["text"] == answer)}
        return {"present": float(bool(answer))}


class Strict:
    def scored(self, doc, answer, strict):
        if strict:
            return {"exact": float(doc["text"] == answer)}
        return {"close": float(answer in doc["text"])}


class Equal:
    def scored(self, doc, answer):
        if not doc["boxes"]:
            return {"hit": float(not answer), "count": 0}
        return {"hit": float(answer), "count": len(doc["boxes"])}


class Notes:
    def __init__(self, task):
        self.task = task
        self.values = collections.defaultdict(list)

    def add(self, doc, answer):
        for word, value in self.task.scored(doc, answer).items():
            self.values[word].append(value)


def share_of(docs):
    return docs[dist.get_rank() :: dist.get_world_size()]


def boxes(docs, answer):
    notes = Notes(Boxes())
    values = collections.defaultdict(list)
    for doc in share_of(docs):
        for word, value in Boxes().scored(doc, answer(doc)).items():
            values[word].append(value)
    for word in values:  # the loop is a share
        dist.gather_object(values[word], [None] * 4, dst=0)  # LNT110
    return notes


def asks_whether_there_is_any(docs, answer):
    for doc in share_of(docs):
        if Boxes().scored(doc, answer(doc)):
            break
    found = Boxes().scored(docs[0], 1)
    if found:
        dist.barrier()


def words(docs, answer):
    values = collections.defaultdict(list)
    for doc in share_of(docs):
        for word, value in Words().scored(doc, answer(doc)).items():
            values[word].append(value)
    for word in values:
        dist.gather_object(values[word], [None] * 4, dst=0)


def strict(docs, answer, setting):
    values = collections.defaultdict(list)
    for doc in share_of(docs):
        for word, value in Strict().scored(doc, answer(doc), setting).items():
            values[word].append(value)
    for word in values:
        dist.gather_object(values[word], [None] * 4, dst=0)


def equal(docs, answer):
    values = collections.defaultdict(list)
    for doc in share_of(docs):
        for word, value in Equal().scored(doc, answer(doc)).items():
            values[word].append(value)
    for word in values:
        dist.gather_object(values[word], [None] * 4, dst=0)


def agreed(docs, answer):
    values = collections.defaultdict(list)
    for doc in share_of(docs):
        for word, value in Boxes().scored(doc, answer(doc)).items():
            values[word].append(value)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, list(values))
    for word in sorted(set().union(*found)):
        dist.gather_object(values[word], [None] * 4, dst=0)
