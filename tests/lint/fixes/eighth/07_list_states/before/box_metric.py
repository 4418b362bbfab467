from torchvision.ops import box_iou

from states import StatefulMetric


class RareClassRecall(StatefulMetric):
    def __init__(self, threshold=0.5):
        super().__init__()
        self.threshold = threshold
        self.add_list("predicted", None, width=4)
        self.add_list("truth", None, width=4)
        self.add_list("confidence", "cat")

    def update(self, predicted, scores, truth):
        self.predicted.append(predicted)
        self.truth.append(truth)
        self.confidence.append(scores)

    def compute(self):
        self.sync()
        hits = total = 0
        for boxes, wanted in zip(self.predicted, self.truth):
            best = box_iou(boxes, wanted).max(dim=0).values
            hits += int((best > self.threshold).sum())
            total += wanted.shape[0]
        return {"recall": hits / max(total, 1), "scores": self.confidence[0].numel()}
