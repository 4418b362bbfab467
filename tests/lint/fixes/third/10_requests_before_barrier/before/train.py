import ray
import torch
import torch.distributed as dist


class RemoteExperienceMaker:
    def __init__(self, strategy, vllm_engines):
        self.strategy = strategy
        self.vllm_engines = vllm_engines
        self.ring_rank0_group = None

    def generate_vllm(self, prompt_token_ids, sampling_params):
        rank = dist.get_rank() // self.strategy.ring_attn_size
        world = dist.get_world_size() // self.strategy.ring_attn_size
        if len(self.vllm_engines) <= world:
            llms = [self.vllm_engines[rank % len(self.vllm_engines)]]
        else:
            llms = self.vllm_engines[rank::world]

        refs = []
        size = (len(prompt_token_ids) + len(llms) - 1) // len(llms)
        for i, llm in enumerate(llms):
            part = prompt_token_ids[i * size : (i + 1) * size]
            refs.append(llm.add_requests.remote(rank, sampling_params=sampling_params, prompt_token_ids=part))

        if self.strategy.ring_attn_group is not None:
            if self.ring_rank0_group is None:
                ranks = [i * self.strategy.ring_attn_size for i in range(world)]
                self.ring_rank0_group = dist.new_group(ranks=ranks)
            dist.barrier(group=self.ring_rank0_group)
        else:
            dist.barrier()

        ray.get(refs)

        outputs = []
        for llm in llms:
            outputs.append(llm.get_responses.remote(rank))
        return sum(ray.get(outputs), [])
