"""Dictionaries whose words depend on the items that this rank has."""

import torch
import torch.distributed as dist


def grade(item, guess):
    if item["empty"]:
        return {"empty_ok": float(not guess)}
    out = {"iou": guess / 2}
    if item["small"] < 0.1:
        out["small_iou"] = out["iou"]
    return out


def grade_all_words(item, guess):
    out = {"iou": guess / 2, "small_iou": 0.0}
    if item["small"] < 0.1:
        out["small_iou"] = out["iou"]
    return out


def grade_by_setting(item, guess, strict):
    out = {"iou": guess / item}
    if strict:
        out["strict"] = out["iou"]
    return out


class Sheets:
    def __init__(self):
        self.scores = {}

    def note(self, results):
        for name, value in results.items():
            self.scores.setdefault(name, []).append(value)

    def merged(self):
        return {name: self.one(name) for name in self.scores}  # LNT110

    def one(self, name):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, self.scores[name])
        return parts


def appraise(items, model):
    sheets = Sheets()
    for index in range(dist.get_rank(), len(items), dist.get_world_size()):
        sheets.note(grade(items[index], model(items[index])))
    return sheets.merged()


def appraise_here(items, model):
    rank, world = dist.get_rank(), dist.get_world_size()
    totals = {}
    for item in items[rank::world]:
        for name, value in grade(item, model(item)).items():
            totals[name] = totals.get(name, 0) + value
    for name in totals:
        dist.all_reduce(totals[name])  # LNT110
    return totals


class WholeSheets:
    def __init__(self):
        self.scores = {}

    def note(self, results):
        for name, value in results.items():
            self.scores.setdefault(name, []).append(value)

    def merged(self):
        names = [None] * dist.get_world_size()
        dist.all_gather_object(names, list(self.scores))
        for name in sorted(set().union(*names)):
            dist.all_gather_object([None] * dist.get_world_size(), self.scores.get(name, []))


class SameWords:
    def __init__(self):
        self.scores = {}

    def note(self, results):
        for name, value in results.items():
            self.scores.setdefault(name, []).append(value)

    def merged(self):
        for values in self.scores.values():
            dist.all_gather_object([None] * dist.get_world_size(), values)


def appraise_rightly(items, model):
    whole, same = WholeSheets(), SameWords()
    for index in range(dist.get_rank(), len(items), dist.get_world_size()):
        whole.note(grade(items[index], model(items[index])))
        same.note(grade_all_words(items[index], model(items[index])))
        same.note(grade_by_setting(items[index], model(items[index]), True))
    whole.merged()
    same.merged()


def all_items(items, model):
    totals = {}
    for item in items:
        for name, value in grade(item, model(item)).items():
            totals[name] = totals.get(name, 0) + value
    for name in totals:
        dist.all_reduce(totals[name])


def every_hundredth(items, model):
    rank, world = dist.get_rank(), dist.get_world_size()
    for index in range(rank, len(items), world):
        if index % 100 == 0:
            print(torch.tensor(model(items[index])))
    dist.barrier()
