import pytorch_lightning as pl
import torch


class GeneralizedRCNNTask(pl.LightningModule):
    def __init__(self, model, evaluators, base_lr):
        super().__init__()
        self.model = model
        self.evaluators = evaluators
        self.base_lr = base_lr

    def training_step(self, batch, batch_idx):
        losses = self.model(batch)
        total = sum(losses.values())
        self.log_dict(losses, prog_bar=True)
        return total

    def on_validation_epoch_start(self):
        for evaluator in self.evaluators.values():
            evaluator.reset()

    def validation_step(self, batch, batch_idx):
        outputs = self.model(batch)
        for evaluator in self.evaluators.values():
            evaluator.process(batch, outputs)

    def validation_epoch_end(self, outputs):
        flattened = {}
        for name, evaluator in self.evaluators.items():
            for metric, value in evaluator.evaluate().items():
                flattened[f"{name}/{metric}"] = torch.tensor(value, device=self.device)
        self.log_dict(flattened, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.base_lr, momentum=0.9)
