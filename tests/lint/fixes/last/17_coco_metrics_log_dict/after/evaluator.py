import itertools

import torch.distributed as dist


class COCOEvaluator:
    def __init__(self, dataset, coco_eval_fn):
        self.dataset = dataset
        self.coco_eval_fn = coco_eval_fn
        self._predictions = []

    def reset(self):
        self._predictions = []

    def process(self, inputs, outputs):
        for item, output in zip(inputs, outputs):
            self._predictions.append({"image_id": item["image_id"], "instances": output["instances"].to("cpu")})

    def evaluate(self):
        predictions = [None] * dist.get_world_size()
        dist.all_gather_object(predictions, self._predictions)
        results = [None]
        if dist.get_rank() == 0:
            predictions = list(itertools.chain(*predictions))
            results = [self.coco_eval_fn(self.dataset, predictions)]
        dist.broadcast_object_list(results, src=0)
        return results[0]
