import torch

from distributed import gather_tensor
from reporter import TestReporter


class Detector(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, batch):
        output = self.backbone(batch["image"])
        return {"id": batch["id"], "image_id": batch["image_id"], "boxes": output["boxes"], "scores": output["scores"]}

    def format_for_prediction(self, results, report):
        boxes = gather_tensor(report["boxes"]).flatten(0, 1)
        for result, box in zip(results, boxes.cpu().tolist()):
            result["boxes"] = box
        return results


@torch.no_grad()
def predict(model, loader, dataset, path):
    reporter = TestReporter(dataset, path)
    model.eval()
    for batch in loader:
        reporter.add_to_report(model(batch), model)
    reporter.flush()
