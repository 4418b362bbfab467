import deepspeed
from transformers import AutoModelForCausalLM
from transformers.integrations import is_deepspeed_zero3_enabled


class ModelLoader:
    def __init__(self, model_dir, torch_dtype):
        self.model_dir = model_dir
        self.torch_dtype = torch_dtype

    def _get_z3_leaf_modules(self, hf_model_type):
        z3_leaf_modules = None
        if hf_model_type == "qwen2_moe":
            from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
            z3_leaf_modules = [Qwen2MoeSparseMoeBlock]
        elif hf_model_type == "mixtral":
            from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
            z3_leaf_modules = [MixtralSparseMoeBlock]
        elif hf_model_type == "glm4_moe":
            from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
            z3_leaf_modules = [Glm4MoeMoE]
        return z3_leaf_modules

    def load(self):
        model = AutoModelForCausalLM.from_pretrained(self.model_dir, torch_dtype=self.torch_dtype)
        if is_deepspeed_zero3_enabled():
            leaf_modules = self._get_z3_leaf_modules(model.config.model_type)
            if leaf_modules:
                deepspeed.utils.set_z3_leaf_modules(model, leaf_modules)
        return model
