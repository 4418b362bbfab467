from collections import defaultdict

import torch
from transformers import Trainer


class DataCollatorWithPadding:
    def __init__(self, pad_token_id):
        self.pad_token_id = pad_token_id

    def __call__(self, examples):
        longest = max(len(e["input_ids"]) for e in examples)
        ids = [e["input_ids"] + [self.pad_token_id] * (longest - len(e["input_ids"])) for e in examples]
        mask = [[1] * len(e["input_ids"]) + [0] * (longest - len(e["input_ids"])) for e in examples]
        input_ids, attention_mask = torch.tensor(ids), torch.tensor(mask)
        labels = input_ids.masked_fill(attention_mask == 0, -100)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class SFTTrainer(Trainer):
    def __init__(self, *args, pad_token_id=0, **kwargs):
        kwargs.setdefault("data_collator", DataCollatorWithPadding(pad_token_id))
        super().__init__(*args, **kwargs)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._total_train_tokens = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        mode = "eval" if self.control.should_evaluate else "train"
        (loss, outputs) = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        if mode == "train":
            self._total_train_tokens += self.accelerator.gather_for_metrics(inputs["attention_mask"]).sum().item()
        self._metrics[mode]["num_tokens"] = [self._total_train_tokens]

        if "labels" in inputs and not self.args.use_liger_kernel:
            predictions = outputs.logits[..., :-1, :].argmax(dim=-1)
            shift_labels = inputs["labels"][..., 1:]
            mask = shift_labels != -100
            correct = self.accelerator.gather_for_metrics(((predictions == shift_labels) & mask).sum())
            total = self.accelerator.gather_for_metrics(mask.sum())
            accuracy = (correct.sum() / total.sum()).item() if total.sum() > 0 else 0.0
            self._metrics[mode]["mean_token_accuracy"].append(accuracy)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        mode = "eval" if self.control.should_evaluate else "train"
        metrics = {key: sum(val) / len(val) for key, val in self._metrics[mode].items()}
        super().log({**logs, **metrics}, start_time)
        self._metrics[mode].clear()
