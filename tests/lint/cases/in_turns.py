"""Collectives while the others wait for the first rank."""

import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer


def accelerator():
    return Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3, gradient_accumulation_steps=4))


def model_in_turns(accelerator, name):
    with accelerator.main_process_first():
        return AutoModelForCausalLM.from_pretrained(name)  # LNT105


def meets_in_turns(accelerator, name):
    with accelerator.main_process_first():
        data = load_dataset(name)
        accelerator.wait_for_everyone()  # LNT105
    return data


def reduces_in_turns(accelerator, count):
    with accelerator.local_main_process_first():
        dist.all_reduce(count)  # LNT105


def data_in_turns(accelerator, name):
    with accelerator.main_process_first():
        data = load_dataset(name)
        words = AutoTokenizer.from_pretrained(name)
    accelerator.wait_for_everyone()
    return data, words


def model_together(name):
    return AutoModelForCausalLM.from_pretrained(name)
