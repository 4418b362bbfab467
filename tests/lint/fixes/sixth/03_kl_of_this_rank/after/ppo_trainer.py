import torch
import torch.distributed as dist
from accelerate import Accelerator


class PPOTrainer:
    def __init__(self, config, model, optimizer):
        self.config = config
        self.accelerator = Accelerator()
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def train_minibatch(self, batch):
        logits, values = self.model(batch["input_ids"])
        logprobs = torch.log_softmax(logits, dim=-1).gather(-1, batch["tokens"].unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(logprobs - batch["old_logprobs"])
        loss = -(ratio * batch["advantages"]).mean() + 0.1 * (values - batch["returns"]).pow(2).mean()
        policykl = 0.5 * ((logprobs - batch["old_logprobs"]) ** 2).mean()
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": loss.detach(), "policy/policykl": policykl.detach()}

    def _early_stop(self, policykl):
        dist.all_reduce(policykl)
        policykl /= self.accelerator.num_processes
        return bool(policykl > 1.5 * self.config.target_kl)

    def step(self, minibatches):
        early_stop = False
        stats = []
        for _ in range(self.config.ppo_epochs):
            if early_stop:
                break
            for batch in minibatches:
                train_stats = self.train_minibatch(batch)
                stats.append(train_stats)
                if self.config.early_stopping:
                    early_stop = self._early_stop(train_stats["policy/policykl"])
                    if early_stop:
                        break
        return stats
