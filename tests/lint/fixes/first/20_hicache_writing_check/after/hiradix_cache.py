import logging

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


class HiRadixCache:
    def __init__(self, cache_controller, tp_cache_group, write_through_threshold=1):
        self.cache_controller = cache_controller
        self.tp_group = tp_cache_group
        self.tp_world_size = dist.get_world_size(group=tp_cache_group)
        self.write_through_threshold = write_through_threshold
        self.ongoing_write_through = {}

    def write_backup(self, node):
        host_indices = self.cache_controller.write(device_indices=node.value, node_id=node.id)
        if host_indices is None:
            self.evict_host(len(node.value))
            host_indices = self.cache_controller.write(device_indices=node.value, node_id=node.id)
        if host_indices is None:
            return 0
        node.host_value = host_indices
        self.ongoing_write_through[node.id] = node
        node.lock_ref += 1
        return len(host_indices)

    def evict_host(self, num_tokens):
        self.cache_controller.mem_pool_host.evict(num_tokens)

    def writing_check(self):
        finish_count = 0
        for start_event, finish_event, ack_list in self.cache_controller.ack_write_queue:
            if not finish_event.query():
                break
            finish_count += 1
        queue_size = torch.tensor(finish_count, dtype=torch.int)
        if self.tp_world_size > 1:
            dist.all_reduce(queue_size, op=dist.ReduceOp.MIN, group=self.tp_group)

        for _ in range(int(queue_size.item())):
            _, finish_event, ack_list = self.cache_controller.ack_write_queue.pop(0)
            finish_event.synchronize()
            for node_id in ack_list:
                node = self.ongoing_write_through.pop(node_id)
                node.lock_ref -= 1

    def check_hicache_events(self):
        self.writing_check()
        self.cache_controller.flush_loads()
