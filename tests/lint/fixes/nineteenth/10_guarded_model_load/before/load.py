from dataclasses import dataclass

from accelerate import Accelerator, DeepSpeedPlugin
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass
class Settings:
    model: str = "Qwen/Qwen2.5-0.5B-Instruct"
    dataset: str = "tatsu-lab/alpaca"
    max_length: int = 1024
    batch_size: int = 4
    lr: float = 1e-5


def make_accelerator(settings):
    plugin = DeepSpeedPlugin(
        zero_stage=3, gradient_accumulation_steps=4, zero3_init_flag=True
    )
    accelerator = Accelerator(deepspeed_plugin=plugin, mixed_precision="bf16")
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    config["train_micro_batch_size_per_gpu"] = settings.batch_size
    return accelerator


def make_dataset(accelerator, settings, tokenizer):
    def encode(row):
        text = row["instruction"] + "\n" + row["output"]
        return tokenizer(text, truncation=True, max_length=settings.max_length)

    with accelerator.main_process_first():
        data = load_dataset(settings.dataset, split="train")
        data = data.map(encode, remove_columns=data.column_names)
    return data


def make_model(accelerator, settings):
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    with accelerator.main_process_first():
        model = AutoModelForCausalLM.from_pretrained(settings.model)
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    return tokenizer, model
