import collections
import json
from typing import Dict, List


def iou(a, b):
    x0, y0, x1, y1 = max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])
    inter = max(0.0, x1 - x0) * max(0.0, y1 - y0)
    area = lambda r: (r[2] - r[0]) * (r[3] - r[1])
    union = area(a) + area(b) - inter
    return inter / union if union > 0 else 0.0


class GroundingTask:
    """Phrase grounding; negative phrases and boxes are scored by different metrics."""

    name = "grounding"

    def __init__(self, path):
        with open(path) as f:
            self.docs = [json.loads(line) for line in f]

    def eval_docs(self, rank, world_size) -> List[dict]:
        return self.docs[rank::world_size]

    def process_results(self, doc, answer) -> Dict[str, float]:
        present = answer.get("present", False)
        if not doc["boxes"]:
            return {"il_true_negative": float(not present)}
        scores = {"il_true_positive": float(present)}
        if present:
            best = max(iou(answer["box"], b) for b in doc["boxes"])
            scores["box_iou"] = best
            scores[f"acc_{doc['size']}"] = float(best >= 0.5)
        return scores


class TaskOutput:
    def __init__(self, task):
        self.task = task
        self.sample_metrics = collections.defaultdict(list)
        self.agg_metrics = {}

    def add(self, doc, answer):
        for metric, value in self.task.process_results(doc, answer).items():
            self.sample_metrics[metric].append(value)

    def aggregate(self):
        for metric, values in self.sample_metrics.items():
            if values:
                self.agg_metrics[metric] = sum(values) / len(values)
        return self.agg_metrics
