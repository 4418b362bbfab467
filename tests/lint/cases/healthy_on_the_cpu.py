"""On the CPU nothing is sharded: the first rank has all parameters itself. And a group that is left and made anew after a failure."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import Trainer, TrainingArguments


def publishes(model, loader):
    accelerator = Accelerator(cpu=True)
    model, loader = accelerator.prepare(model, loader)
    if accelerator.is_main_process:
        torch.save(accelerator.get_state_dict(model), "model.pt")
    accelerator.wait_for_everyone()


def saves(model, data):
    trainer = Trainer(model=model, args=TrainingArguments(output_dir="out", use_cpu=True), train_dataset=data)
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model("out")


def begins_anew(net, loader, orders):
    while True:
        dist.init_process_group("gloo", init_method=orders.get())
        model = DDP(net)
        try:
            for x in loader:
                model(x).sum().backward()
            break
        except RuntimeError as error:
            print("lost the others", error)
            dist.destroy_process_group()
