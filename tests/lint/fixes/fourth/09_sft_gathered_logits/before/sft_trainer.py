from collections import defaultdict

from transformers import Trainer

from utils import collate, compute_token_accuracy


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
            shift_logits = self.accelerator.gather_for_metrics(shift_logits)
            shift_labels = self.accelerator.gather_for_metrics(shift_labels)
            if self.accelerator.is_main_process:
                accuracy = compute_token_accuracy(shift_logits, shift_labels)
                self._metrics["mean_token_accuracy"].append(accuracy)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        metrics = {key: sum(val) / len(val) for key, val in self._metrics.items()}
        super().log({**logs, **metrics}, start_time)
        self._metrics.clear()
