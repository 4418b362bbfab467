from megatron.core import mpu
from megatron.core.pipeline_parallel import get_forward_backward_func

from mtp_tracker import get_megatron_mtp_loss


class MegatronEngine:
    def __init__(self, module, model_config, forward_step):
        self.module = module
        self.model_config = model_config
        self.forward_step = forward_step

    def is_mp_src_rank_with_outputs(self):
        return (
            mpu.get_tensor_model_parallel_rank() == 0
            and mpu.get_pipeline_model_parallel_rank() == mpu.get_pipeline_model_parallel_world_size() - 1
            and mpu.get_context_parallel_rank() == 0
        )

    def forward_backward_batch(self, batch_generator, n_micro_batch, forward_only=False):
        forward_backward_func = get_forward_backward_func()
        losses_reduced = forward_backward_func(
            forward_step_func=self.forward_step,
            data_iterator=batch_generator,
            model=self.module,
            num_microbatches=n_micro_batch,
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
        )
        if self.model_config.mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True):
            metrics = get_megatron_mtp_loss(n_micro_batch)
            if self.is_mp_src_rank_with_outputs():
                if "metrics" not in losses_reduced[0]:
                    losses_reduced[0]["metrics"] = {}
                losses_reduced[0]["metrics"].update(metrics)
        if self.is_mp_src_rank_with_outputs():
            return self.postprocess(losses_reduced)
        return {}

    def postprocess(self, losses_reduced):
        return {k: v for item in losses_reduced for k, v in item.items()}
