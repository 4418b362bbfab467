"""Forward-only schedule over the stages of a pipeline."""
import torch
import torch.distributed as dist


class Stages:
    def __init__(self, group, hidden_shape, device):
        self.group = group
        self.ranks = dist.get_process_group_ranks(group)
        self.stage = dist.get_rank(group)
        self.count = len(self.ranks)
        self.hidden_shape = hidden_shape
        self.device = device

    @property
    def first(self):
        return self.stage == 0

    @property
    def last(self):
        return self.stage == self.count - 1

    def receive(self):
        hidden = torch.empty(self.hidden_shape, device=self.device, dtype=torch.bfloat16)
        dist.recv(hidden, self.ranks[self.stage - 1], group=self.group)
        return hidden

    def send(self, hidden):
        dist.send(hidden.contiguous(), self.ranks[self.stage + 1], group=self.group)


def forward_only(stages, model, batches, micro_batches, keep_outputs=False):
    results = []
    for _ in range(micro_batches):
        batch = next(batches)
        hidden = batch["tokens"].to(stages.device) if stages.first else stages.receive()
        output = model(hidden)
        if not stages.last:
            stages.send(output)
        elif keep_outputs:
            results.append({"logits": output.float().cpu(), "tokens": batch["tokens"]})
        else:
            labels = batch["labels"].to(stages.device)
            results.append(torch.nn.functional.cross_entropy(output.float().flatten(0, 1), labels.flatten()))
    return results
