import torch
from torch.distributed.tensor import DTensor


class BucketWeightSyncer:
    def __init__(self, bucket_bytes, dtype):
        self.bucket_bytes = bucket_bytes
        self.dtype = dtype
        self.names = None

    def init_sender(self, names):
        self.names = set(names)
        if not self.names:
            raise ValueError("no parameter names to sync")

    def iter_buckets(self, state_dict, version):
        bucket, size = {}, 0
        for name in self.names:
            value = state_dict[name]
            if isinstance(value, DTensor):
                value = value.full_tensor()
            value = value.to(self.dtype)
            nbytes = value.numel() * value.element_size()
            if bucket and size + nbytes > self.bucket_bytes:
                yield bucket
                bucket, size = {}, 0
            bucket[name] = value
            size += nbytes
        bucket["version"] = torch.tensor(version)
        yield bucket

    def sync(self, state_dict, send, version):
        for bucket in self.iter_buckets(state_dict, version):
            send(bucket)
