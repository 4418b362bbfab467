"""Answers of one model on one question set, split over the ranks."""
import os
import pickle
import string

import torch
import torch.distributed as dist
from tqdm import tqdm


def infer_share(model, work_dir, model_name, dataset, rank, world):
    path = os.path.join(work_dir, f"{rank}{world}_{dataset.name}.pkl")
    done = {}
    if os.path.exists(path):
        with open(path, "rb") as handle:
            done = pickle.load(handle)
    rows = dataset.rows[rank::world]
    for row in tqdm(rows, disable=rank != 0, desc=f"{model_name} on {dataset.name}"):
        if row["index"] in done:
            continue
        done[row["index"]] = model.generate(dataset.prompt(row))
        torch.cuda.empty_cache()
    with open(path, "wb") as handle:
        pickle.dump(done, handle)
    return path


def infer_job(model, work_dir, model_name, dataset):
    rank, world = int(os.getenv("RANK", 0)), int(os.getenv("WORLD_SIZE", 1))
    target = os.path.join(work_dir, f"{model_name}_{dataset.name}.pkl")
    infer_share(model, work_dir, model_name, dataset, rank, world)
    if world > 1:
        dist.barrier()
    if rank == 0:
        answers = {}
        for other in range(world):
            with open(os.path.join(work_dir, f"{other}{world}_{dataset.name}.pkl"), "rb") as handle:
                answers.update(pickle.load(handle))
        rows = [dict(row, prediction=str(answers[row["index"]])) for row in dataset.rows]
        with open(target, "wb") as handle:
            pickle.dump(rows, handle)
    return target


def first_letter(text):
    for char in text.strip():
        if char in string.ascii_uppercase[:6]:
            return char
    return ""
