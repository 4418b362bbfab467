import argparse
import json
import logging
import os
import pickle

import torch
import torch.distributed as dist

from infer import first_letter, infer_job
from registry import build_dataset, build_model

log = logging.getLogger("run")


def evaluate(path):
    with open(path, "rb") as handle:
        rows = pickle.load(handle)
    hits = [first_letter(row["prediction"]) == row["answer"] for row in rows]
    return {"accuracy": sum(hits) / max(len(hits), 1), "questions": len(hits)}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--work-dir", default="outputs")
    parser.add_argument("--mode", default="all", choices=["all", "infer"])
    parser.add_argument("--judge", default="exact")
    return parser.parse_args()


def main():
    args = parse_args()
    rank, world = int(os.getenv("RANK", 0)), int(os.getenv("WORLD_SIZE", 1))
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    if world > 1:
        torch.cuda.set_device(int(os.getenv("LOCAL_RANK", 0)))
        dist.init_process_group("nccl")

    for model_name in args.model:
        work_dir = os.path.join(args.work_dir, model_name)
        os.makedirs(work_dir, exist_ok=True)
        model = build_model(model_name)

        for data_name in args.data:
            if world > 1:
                dist.barrier()
            dataset = build_dataset(data_name)
            result = infer_job(model, work_dir, model_name, dataset)

            if rank == 0:
                log.info("%s answered %d questions of %s", model_name, len(dataset.rows), data_name)
                if args.mode == "infer":
                    continue
                if dataset.kind == "open" and args.judge == "exact":
                    log.warning("%s needs a judge model, kept the answers only", data_name)
                score = evaluate(result)
                with open(result.replace(".pkl", "_score.json"), "w") as handle:
                    json.dump(score, handle, indent=2)
                log.info("%s on %s: %s", model_name, data_name, score)

    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
