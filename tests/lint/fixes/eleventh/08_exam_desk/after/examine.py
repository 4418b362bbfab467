import torch
import torch.distributed as dist


def my_share(items):
    return items[dist.get_rank() :: dist.get_world_size()]


def grade(model, item):
    guess = model.answer(item["question"])
    return float(guess.strip().lower() == item["answer"].lower())


def examine(model, subject):
    marks = [grade(model, item) for item in my_share(subject.items())]
    parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(marks, parts, dst=0)
    if dist.get_rank() != 0:
        return {}
    flat = [m for part in parts for m in part]
    return {"subject": subject.name, "score": sum(flat) / max(len(flat), 1), "n": len(flat)}
