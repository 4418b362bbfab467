import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from bucket_syncer import BucketWeightSyncer


class FSDPActor:
    def __init__(self, model, channel, cfg):
        for layer in model.layers:
            fully_shard(layer)
        self.model = fully_shard(model)
        self.channel = channel
        self.syncer = BucketWeightSyncer(cfg.bucket_bytes, torch.bfloat16)
        trainable = [n for n, p in self.model.named_parameters() if p.requires_grad]
        self.syncer.init_sender(trainable)
        self.version = 0

    def send(self, bucket):
        if dist.get_rank() == 0:
            self.channel.put({k: v.cpu() for k, v in bucket.items()})

    def sync_model_to_rollout(self):
        self.syncer.sync(self.model.state_dict(), self.send, self.version)
        self.version += 1
