import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

from answering import answer_all
from quizzes import QUIZZES, build_quiz


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", default=list(QUIZZES))
    parser.add_argument("--model", nargs="+", default=["small", "wide"])
    parser.add_argument("--mode", choices=["all", "infer"], default="all")
    parser.add_argument("--work-dir", default="outputs")
    return parser.parse_args()


def build_model(name):
    width = {"small": 32, "wide": 128}[name]
    return torch.nn.Sequential(torch.nn.Linear(48, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)).cuda().eval()


def main():
    args = parse()
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")

    for model_name in args.model:
        model = build_model(model_name)
        folder = Path(args.work_dir) / model_name
        folder.mkdir(parents=True, exist_ok=True)
        for quiz_name in args.data:
            quiz = build_quiz(quiz_name)
            answer_all(model, quiz_name, quiz.items, folder, rank, world)

            if rank == 0:
                if args.mode == "infer":
                    print(f"{model_name} x {quiz_name}: answers written")
                    continue
                if quiz.hidden:
                    print(f"{quiz_name} has no public truth, send in {folder}")
                    continue
                score = quiz.grade(folder)
                print(f"{model_name} x {quiz_name}: {score:.3f}")

            if world > 1:
                dist.barrier()

    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
