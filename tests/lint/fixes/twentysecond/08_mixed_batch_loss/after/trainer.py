import glob
import json
import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import SD3Transformer2DModel
from diffusers.optimization import get_scheduler

from backends import Backend, BackendMixture


class Trainer:
    def __init__(self, config):
        self.config = config
        self.accelerator = Accelerator(
            gradient_accumulation_steps=config["gradient_accumulation_steps"],
            mixed_precision="bf16",
            log_with=config.get("report_to"),
        )
        set_seed(config["seed"], device_specific=True)
        backends = [Backend(c, sorted(glob.glob(c["path"] + "/*.pt"))) for c in config["datasets"]]
        self.data = BackendMixture(backends, config["seed"] + self.accelerator.process_index)
        model = SD3Transformer2DModel.from_pretrained(config["model"], subfolder="transformer")
        model.enable_gradient_checkpointing()
        optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
        scheduler = get_scheduler("cosine", optimizer, config["warmup"], config["max_train_steps"])
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)
        self.train_loss = 0.0
        self.global_step = 0

    def _loss(self, batch):
        device = self.accelerator.device
        latents = batch["latents"].to(device)
        embeds = batch["prompt_embeds"].to(device)
        noise = torch.randn_like(latents)
        sigma = torch.sigmoid(torch.randn(latents.size(0), device=device))
        s = sigma.view(-1, 1, 1, 1)
        noisy = (1 - s) * latents + s * noise
        pred = self.model(
            hidden_states=noisy,
            timestep=sigma * 1000,
            encoder_hidden_states=embeds,
            pooled_projections=embeds.mean(dim=1),
            return_dict=False,
        )[0]
        return F.mse_loss(pred.float(), (noise - latents).float())

    def _average(self, loss, count):
        own = torch.stack([loss.detach() * count, loss.new_tensor(float(count))])
        gathered = self.accelerator.gather(own).view(-1, 2).sum(dim=0)
        return (gathered[0] / gathered[1]).item()

    def train(self):
        steps = self.config["max_train_steps"]
        self.model.train()
        while self.global_step < steps:
            name, batch = self.data.next_batch()
            with self.accelerator.accumulate(self.model):
                loss = self._loss(batch)
                average = self._average(loss, batch["latents"].size(0))
                self.train_loss += average / self.config["gradient_accumulation_steps"]
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients:
                self.global_step += 1
                self.accelerator.log({"train_loss": self.train_loss}, step=self.global_step)
                self.train_loss = 0.0
        self.accelerator.end_training()


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        Trainer(json.load(f)).train()
