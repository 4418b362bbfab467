import torch

from data import sync_actor_critic_data


class TrainActor:
    def __init__(self, args, role, model, ref_model, actor_critic_group):
        self.args = args
        self.role = role
        self.model = model
        self.ref_model = ref_model
        self.group = actor_critic_group

    @torch.no_grad()
    def forward_values(self, rollout_data):
        return [self.model(tokens).squeeze(-1) for tokens in rollout_data["tokens"]]

    @torch.no_grad()
    def forward_log_probs(self, model, rollout_data):
        return [model(tokens).log_softmax(-1).amax(-1) for tokens in rollout_data["tokens"]]

    def train_critic(self, rollout_data):
        rollout_data["values"] = self.forward_values(rollout_data)
        sync_actor_critic_data(self.args, rollout_data, self.group)
        return self.optimize(rollout_data)

    def train_actor(self, rollout_data):
        if self.ref_model is not None:
            rollout_data["ref_log_probs"] = self.forward_log_probs(self.ref_model, rollout_data)
        if not self.args.use_rollout_logprobs:
            rollout_data["log_probs"] = self.forward_log_probs(self.model, rollout_data)
        sync_actor_critic_data(self.args, rollout_data, self.group)
        return self.optimize(rollout_data)

    def train(self, rollout_data):
        if self.role == "critic":
            return self.train_critic(rollout_data)
        return self.train_actor(rollout_data)

    def optimize(self, rollout_data):
        raise NotImplementedError
