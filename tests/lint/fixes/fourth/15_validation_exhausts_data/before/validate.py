import torch
import torch.distributed as dist

from hf_datasets import build_hf_validation_dataloader


class Validator:
    def __init__(self, job_config, data, tokenizer, dp_rank, dp_world_size, loss_fn, dp_group):
        self.job_config = job_config
        self.loss_fn = loss_fn
        self.dp_group = dp_group
        self.validation_dataloader = build_hf_validation_dataloader(
            data, tokenizer, job_config, dp_rank, dp_world_size
        )

    @torch.no_grad()
    def validate(self, model_parts, step):
        for model in model_parts:
            model.eval()
        steps = self.job_config.validation.steps
        accumulated_losses = []
        num_steps = 0
        for input_dict, labels in self.validation_dataloader:
            if steps != -1 and num_steps >= steps:
                break
            predictions = model_parts[0](input_dict["input"].cuda())
            accumulated_losses.append(self.loss_fn(predictions, labels.cuda()).detach())
            num_steps += 1
        loss = torch.stack(accumulated_losses).sum() / num_steps
        dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=self.dp_group)
        for model in model_parts:
            model.train()
        return loss.item()
