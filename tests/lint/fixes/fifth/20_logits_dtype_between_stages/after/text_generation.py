import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel


def sample_step(strategy, model, tokens, context_length):
    outputs = strategy.forward_step(tokens, context_length)
    if parallel_state.is_pipeline_last_stage():
        logits = tensor_parallel.gather_from_tensor_model_parallel_region(outputs[0]["logits"])
        return logits.float()
    return None


def generate(model, strategy, tokens, context_length, max_length, compute_logprob=True):
    batch = tokens.size(0)
    output_logits = None
    while context_length < max_length:
        logits = sample_step(strategy, model, tokens, context_length)
        group = parallel_state.get_embedding_group()
        if parallel_state.is_pipeline_last_stage():
            new_tokens = logits[:, -1].argmax(-1)
            tokens[:, context_length] = new_tokens
            dist.broadcast(new_tokens, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
            log_probs = F.log_softmax(logits[:, :context_length], dim=-1)
            output_logits = log_probs.gather(2, tokens[:, 1 : context_length + 1, None]).squeeze(2)
        elif parallel_state.is_pipeline_first_stage():
            new_tokens = torch.empty(batch, dtype=torch.int64, device="cuda")
            dist.broadcast(new_tokens, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
            tokens[:, context_length] = new_tokens
        context_length += 1
    return tokens, output_logits, context_length


def synced_generate(model, strategy, tokens, context_length, max_length, compute_logprob=True):
    tokens, output_logits, context_length = generate(model, strategy, tokens, context_length, max_length)
    src = parallel_state.get_pipeline_model_parallel_last_rank()
    group = parallel_state.get_embedding_group()
    if parallel_state.is_pipeline_last_stage():
        if compute_logprob:
            dist.broadcast(output_logits, src, group)
    elif parallel_state.is_pipeline_first_stage():
        if compute_logprob:
            dtype = torch.float32
            output_logits = torch.empty(tokens.size(0), context_length - 1, dtype=dtype, device="cuda")
            dist.broadcast(output_logits, src, group)
    return tokens, output_logits
