import pytorch_lightning as pl
import torch
import torch.distributed as dist


class CenterGroup(pl.LightningModule):
    def __init__(self, group_model, dataset_val, train_cfg):
        super().__init__()
        self.group_model = group_model
        self.dataset_val = dataset_val
        self.train_cfg = train_cfg

    @property
    def world_rank(self):
        return dist.get_rank() if dist.is_initialized() else 0

    def training_step(self, batch, batch_idx):
        losses = self.group_model.loss(batch)
        self._log_metrics(losses, train_val="train", prefix="loss")
        return losses["overall"]

    def validation_step(self, batch, batch_idx):
        return self.group_model.predict(batch)

    def validation_epoch_end(self, outputs):
        gathered = [outputs]
        if dist.is_initialized():
            gathered = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, outputs)
        if self.world_rank == 0:
            results = [r for part in gathered for r in part]
            metrics = self.dataset_val.evaluate(results, metric="mAP")
            self._log_metrics(metrics, train_val="val", prefix=None, rank_zero_only=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.train_cfg["lr"])

    def _log_metrics(self, loss_dict, train_val, prefix="loss", rank_zero_only=False):
        for loss_name, loss_val in loss_dict.items():
            log_str = f"{loss_name}/{train_val}"
            if prefix:
                log_str = f"{prefix}/{log_str}"
            self.log(log_str, loss_val, on_epoch=True, sync_dist=not rank_zero_only, rank_zero_only=rank_zero_only)
