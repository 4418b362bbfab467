import torch
from transformers import Trainer


class ORPOTrainer(Trainer):
    beta = 0.1

    def concatenated_forward(self, model, batch):
        n = batch["chosen_labels"].shape[0]
        outputs = model(batch["concatenated_input_ids"], attention_mask=batch["concatenated_attention_mask"])
        all_logits = outputs.logits
        logps = torch.gather(
            all_logits[:, :-1].log_softmax(-1), 2, batch["concatenated_input_ids"][:, 1:, None]
        ).squeeze(2).mean(-1)
        return logps[:n], logps[n:], all_logits[:n], all_logits[n:], -logps[:n].mean()

    def odds_ratio_loss(self, policy_chosen_logps, policy_rejected_logps):
        log_odds = (policy_chosen_logps - policy_rejected_logps) - (
            torch.log1p(-torch.exp(policy_chosen_logps)) - torch.log1p(-torch.exp(policy_rejected_logps))
        )
        return self.beta * torch.nn.functional.logsigmoid(log_odds)

    def get_batch_loss_metrics(self, model, batch, train_eval="train"):
        metrics = {}
        (
            policy_chosen_logps,
            policy_rejected_logps,
            policy_chosen_logits,
            policy_rejected_logits,
            policy_nll_loss,
        ) = self.concatenated_forward(model, batch)
        losses = self.odds_ratio_loss(policy_chosen_logps, policy_rejected_logps)
        loss = policy_nll_loss - losses.mean()

        prefix = "eval_" if train_eval == "eval" else ""
        gather = self.accelerator.gather_for_metrics
        metrics[f"{prefix}logps/rejected"] = gather(policy_rejected_logps).detach().mean()
        metrics[f"{prefix}logps/chosen"] = gather(policy_chosen_logps).detach().mean()
        metrics[f"{prefix}logits/rejected"] = gather(policy_rejected_logits).detach().mean()
        metrics[f"{prefix}logits/chosen"] = gather(policy_chosen_logits).detach().mean()
        metrics[f"{prefix}nll_loss"] = gather(policy_nll_loss).detach().mean()
        return loss, metrics
