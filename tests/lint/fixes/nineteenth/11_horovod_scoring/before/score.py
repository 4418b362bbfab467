import horovod.torch as hvd
import torch
import torch.nn.functional as F


class Metric:
    def __init__(self, name):
        self.name = name
        self.total = torch.tensor(0.0)
        self.count = torch.tensor(0.0)

    def update(self, value):
        self.total += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.count += 1

    @property
    def average(self):
        return (self.total / self.count).item()


def dice(prob, target, eps=1.0):
    inter = (prob * target).sum()
    return (2 * inter + eps) / (prob.sum() + target.sum() + eps)


def validate(model, loader):
    model.eval()
    loss = Metric("val_loss")
    overlap = Metric("val_dice")
    with torch.no_grad():
        for scan, label in loader:
            scan, label = scan.cuda(), label.cuda()
            logits = model(scan)
            loss.update(F.binary_cross_entropy_with_logits(logits, label))
            overlap.update(dice(torch.sigmoid(logits), label))
    model.train()
    return {"val_loss": loss.average, "val_dice": overlap.average}
