from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from torch_utils import safe_ddp_context


def get_model_processor(model_dir, return_dummy_model=False):
    with safe_ddp_context(hash_id=model_dir.replace("/", "_")):
        processor = AutoTokenizer.from_pretrained(model_dir)
        config = AutoConfig.from_pretrained(model_dir)
        if return_dummy_model:
            return AutoModelForCausalLM.from_config(config), processor
        return AutoModelForCausalLM.from_pretrained(model_dir), processor
