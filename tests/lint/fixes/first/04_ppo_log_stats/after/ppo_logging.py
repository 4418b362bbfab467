import warnings

import torch
import wandb
from accelerate import Accelerator
from accelerate.utils import gather_object


class PPOLogger:
    def __init__(self, config, accelerator: Accelerator):
        self.config = config
        self.accelerator = accelerator
        self.is_distributed = accelerator.num_processes > 1
        self.current_device = accelerator.device

    def log_stats(self, stats, batch, rewards, columns_to_log=("query", "response")):
        if not isinstance(rewards, torch.Tensor):
            rewards = torch.tensor(rewards).to(self.current_device)
        rewards = self.accelerator.gather(rewards).flatten()

        batch_list = []
        if self.config.log_with == "wandb":
            if any(column not in batch.keys() for column in columns_to_log):
                raise ValueError(f"Columns {columns_to_log} are not in the batch {batch.keys()}.")

            batch_list = [batch[column] for column in columns_to_log]
            if self.is_distributed:
                gathered_batch_list = []
                for column in batch_list:
                    gathered_batch_list.append(gather_object(column))
                batch_list = gathered_batch_list

        if self.accelerator.is_main_process:
            logs = {}
            if "query" not in batch.keys() and "response" not in batch.keys():
                warnings.warn("The game logs will not be logged: no query and response in the batch.")
            elif self.config.log_with == "wandb":
                table_rows = [list(r) for r in zip(*batch_list, rewards.cpu().tolist())]
                logs["game_log"] = wandb.Table(columns=[*columns_to_log, "reward"], rows=table_rows)

            logs.update(stats)
            logs["env/reward_mean"] = rewards.mean().item()
            logs["env/reward_std"] = rewards.std().item()
            self.accelerator.log(logs)
