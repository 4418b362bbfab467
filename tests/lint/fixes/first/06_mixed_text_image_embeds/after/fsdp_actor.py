import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from vl_embeds import get_input_embeds


class VLPolicy(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, micro_batch):
        embeds = get_input_embeds(
            self.backbone,
            micro_batch["input_ids"],
            pixel_values=micro_batch.get("pixel_values"),
            image_grid_thw=micro_batch.get("image_grid_thw"),
        )
        return self.backbone.language_model(inputs_embeds=embeds).logits


class DataParallelActor:
    def __init__(self, backbone, vision_block, decoder_layer):
        policy = ModuleWrapPolicy({vision_block, decoder_layer})
        self.actor_module = FSDP(VLPolicy(backbone), auto_wrap_policy=policy, use_orig_params=True)

    @torch.no_grad()
    def compute_log_prob(self, micro_batches):
        self.actor_module.eval()
        log_probs = []
        for micro_batch in micro_batches:
            logits = self.actor_module(micro_batch)
            labels = micro_batch["input_ids"][:, 1:]
            log_probs.append(logits[:, :-1].log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1))
        return torch.cat(log_probs)

    def update_policy(self, micro_batches, optimizer):
        self.actor_module.train()
        for micro_batch in micro_batches:
            logits = self.actor_module(micro_batch)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), micro_batch["input_ids"][:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
