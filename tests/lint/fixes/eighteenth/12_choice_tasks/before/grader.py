from collections import defaultdict

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations import HfDeepSpeedConfig

from tasks import Continuation, MultipleChoice

DS_CONFIG = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "train_micro_batch_size_per_gpu": 1,
}


class ShardedLM:
    def __init__(self, name):
        self.ds = HfDeepSpeedConfig(DS_CONFIG)
        model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16)
        self.engine = deepspeed.initialize(model=model, config=DS_CONFIG)[0].eval()
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def loglikelihood(self, rows):
        results = []
        for context, continuation in rows:
            head = self.tokenizer(context)["input_ids"]
            tail = self.tokenizer(continuation, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([head + tail], device=self.engine.device)
            logp = self.engine(ids).logits[0, :-1].float().log_softmax(-1)
            picked = logp[len(head) - 1:].gather(1, ids[0, len(head):, None])
            results.append(picked.sum().item())
        return results


def evaluate(lm, tasks):
    requests, padding = defaultdict(list), defaultdict(int)
    for task in tasks:
        task.build(lm.rank, lm.world_size)
        method = "loglikelihood" if task.KIND == "multiple_choice" else task.KIND
        requests[method] += task.instances
        if lm.world_size > 1:
            mine = torch.tensor(len(task.instances), device=lm.engine.device)
            counts = [torch.zeros_like(mine) for _ in range(lm.world_size)]
            dist.all_gather(counts, mine)
            pad = int(max(counts)) - len(task.instances)
            padding[task.KIND] += pad

    for method, instances in requests.items():
        rows = [inst.args for inst in instances]
        if padding[method] > 0:
            rows += [rows[-1]] * padding[method]
        for inst, value in zip(instances, getattr(lm, method)(rows)):
            inst.result = value

    table = {}
    for task in tasks:
        scores = [None] * lm.world_size
        dist.all_gather_object(scores, task.score())
        flat = [s for part in scores for s in part]
        table[task.name] = sum(flat) / max(len(flat), 1)
    return table


def main():
    deepspeed.init_distributed()
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    lm = ShardedLM("mistralai/Mistral-7B-v0.1")
    tasks = [MultipleChoice("boolq", "boolq.jsonl"), MultipleChoice("mmlu", "mmlu.jsonl"),
             Continuation("lambada", "lambada.jsonl")]
    table = evaluate(lm, tasks)
    if lm.rank == 0:
        for name, value in table.items():
            print(f"{name:12s} {value:.4f}")


if __name__ == "__main__":
    main()
