import torch
import torch.distributed as dist

from model import get_model_processor
from torch_utils import disable_safe_ddp_context_use_barrier, is_master


class Bridge:
    def __init__(self, args, exporter):
        self.args = args
        self.exporter = exporter
        self.hf_model = None

    def save_weights(self, mg_models, output_dir):
        for shard in self.exporter.export(mg_models):
            if is_master():
                self.exporter.write(shard, output_dir)
        if is_master() and self.hf_model is None:
            with torch.device("meta"), disable_safe_ddp_context_use_barrier():
                self.hf_model = get_model_processor(self.args.model_dir, return_dummy_model=True)[0]
        if is_master():
            self.hf_model.config.save_pretrained(output_dir)
        dist.barrier()


def export(args, mg_models, exporter):
    bridge = Bridge(args, exporter)
    for step, models in enumerate(mg_models):
        bridge.save_weights(models, f"{args.output_dir}/step-{step}")
