import argparse
import itertools
import json
import os

import torch
import torch.distributed as dist
from PIL import Image
from tqdm import tqdm
from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

from tasks import GroundingTask, TaskOutput


class Detector:
    def __init__(self, name, device, threshold=0.3):
        self.processor = AutoProcessor.from_pretrained(name)
        self.model = AutoModelForZeroShotObjectDetection.from_pretrained(name).to(device).eval()
        self.device = device
        self.threshold = threshold

    @torch.no_grad()
    def answer(self, doc):
        image = Image.open(doc["image"]).convert("RGB")
        inputs = self.processor(images=image, text=doc["phrase"], return_tensors="pt").to(self.device)
        outputs = self.model(**inputs)
        sizes = torch.tensor([image.size[::-1]])
        found = self.processor.post_process_object_detection(outputs, self.threshold, sizes)[0]
        if not len(found["scores"]):
            return {"present": False}
        return {"present": True, "box": found["boxes"][found["scores"].argmax()].tolist()}


def evaluate(detector, tasks, rank, world_size):
    outputs = [TaskOutput(task) for task in tasks]
    for output in outputs:
        docs = output.task.eval_docs(rank, world_size)
        for doc in tqdm(docs, desc=output.task.name, disable=rank != 0):
            output.add(doc, detector.answer(doc))

    if world_size > 1:
        for output in outputs:
            for metric in output.sample_metrics:
                parts = [None] * world_size if rank == 0 else None
                dist.gather_object(output.sample_metrics[metric], parts, dst=0)
                if rank == 0:
                    output.sample_metrics[metric] = list(itertools.chain.from_iterable(parts))
        dist.barrier()

    if rank == 0:
        return {output.task.name: output.aggregate() for output in outputs}
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="google/owlv2-base-patch16-ensemble")
    parser.add_argument("--docs", required=True)
    parser.add_argument("--output", default="results.json")
    args = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl")
    results = evaluate(Detector(args.model, device), [GroundingTask(args.docs)], rank, world_size)
    if results is not None:
        with open(args.output, "w") as f:
            json.dump(results, f, indent=2)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
