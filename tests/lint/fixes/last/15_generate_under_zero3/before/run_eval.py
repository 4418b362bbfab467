import deepspeed
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel
from transformers.deepspeed import HfDeepSpeedConfig

from generation_mixin import GreedyGenerationMixin


class Model(GreedyGenerationMixin, GPT2LMHeadModel):
    pass


def evaluate(ds_config, loader, name="gpt2-xl"):
    hf_ds_config = HfDeepSpeedConfig(ds_config)
    assert ds_config["zero_optimization"]["stage"] == 3
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = Model.from_pretrained(name)
    engine, *_ = deepspeed.initialize(model=model, config_params=ds_config)
    engine.module.eval()

    texts = []
    for batch in loader:
        batch = {k: v.to(engine.device) for k, v in batch.items()}
        out = engine.module.generate(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=128,
            eos_token_id=tokenizer.eos_token_id,
        )
        texts += tokenizer.batch_decode(out, skip_special_tokens=True)
    return texts, hf_ds_config
