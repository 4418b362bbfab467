import logging
import time
from collections import defaultdict
from functools import wraps

import torch
import torch.distributed as dist

timers = defaultdict(list)
logger = logging.getLogger(__name__)


def timed(fn):
    @wraps(fn)
    def wrapped(*args, **kwargs):
        start = time.time()
        ret = fn(*args, **kwargs)
        timers[fn.__name__].append(time.time() - start)
        return ret

    return wrapped


class TwoStageLoader:
    def __init__(self, data_parallel_group):
        self.group = data_parallel_group
        self.rank = dist.get_rank(data_parallel_group)

    def load(self, plan, state_dict, checkpoint_dir):
        for owner, key in plan:
            if owner == self.rank:
                tensor = self.load_tensor_from_storage(checkpoint_dir, key)
            else:
                tensor = torch.empty_like(state_dict[key])
            dist.broadcast(tensor, dist.get_global_rank(self.group, owner), group=self.group)
            state_dict[key].copy_(tensor)
        return state_dict

    @timed
    def load_tensor_from_storage(self, checkpoint_dir, key):
        return torch.load(f"{checkpoint_dir}/{key}.pt").cuda()

    def log_local_load_times(self):
        for key, times in sorted(timers.items()):
            logger.info(f"{key}: {sum(times)}")
