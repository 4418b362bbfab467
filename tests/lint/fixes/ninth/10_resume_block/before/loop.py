import os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Loop:
    def __init__(self, opts, model, optimizer, loader):
        self.opts = opts
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.step = 0

    def restore(self, folder):
        weights, optim = get_state_dict(self.model, self.optimizer)
        state = {"model": weights, "optim": optim, "step": torch.tensor(0)}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer,
                       model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.step = int(state["step"])

    def save(self):
        weights, optim = get_state_dict(self.model, self.optimizer)
        state = {"model": weights, "optim": optim, "step": torch.tensor(self.step)}
        dcp.save(state, checkpoint_id=os.path.join(self.opts.save_folder, f"step{self.step}"))

    def fit(self):
        stream = self.loader.from_step(self.step)
        while self.step < self.opts.max_steps:
            batch = {k: v.cuda() for k, v in next(stream).items()}
            loss = self.model(**batch)
            loss.backward()
            self.model.clip_grad_norm_(1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if self.step % self.opts.save_every == 0:
                self.save()
