from collections import defaultdict

from transformers import Trainer

from utils import collate


class SFTTrainer(Trainer):
    def __init__(self, model, args, train_dataset, use_liger=False, **kwargs):
        super().__init__(model=model, args=args, train_dataset=train_dataset, data_collator=collate, **kwargs)
        self.use_liger = use_liger
        self._metrics = defaultdict(list)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        (loss, outputs) = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        if "labels" in inputs and not self.use_liger:
            shift_logits = outputs.logits[..., :-1, :].contiguous()
            shift_labels = inputs["labels"][..., 1:].contiguous()
            predictions = shift_logits.argmax(dim=-1)
            mask = shift_labels != -100
            correct = self.accelerator.gather_for_metrics(((predictions == shift_labels) & mask).sum())
            total = self.accelerator.gather_for_metrics(mask.sum())
            accuracy = (correct.sum() / total.sum()).item() if total.sum() > 0 else 0.0
            self._metrics["mean_token_accuracy"].append(accuracy)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        metrics = {key: sum(val) / len(val) for key, val in self._metrics.items()}
        super().log({**logs, **metrics}, start_time)
        self._metrics.clear()
