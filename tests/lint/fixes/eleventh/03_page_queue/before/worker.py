import os
import random
import time

import torch.distributed as dist

from page_cache import PageCache
from page_queue import Ask, PageQueue


def fetch(key, pages):
    time.sleep(random.random() / 10)
    return random.randint(0, pages)


def incoming(turn):
    box = [[Ask(f"{turn}-{i}", 4 + i % 5) for i in range(8)] if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main():
    dist.init_process_group("gloo")
    group = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
    queue = PageQueue(PageCache(int(os.environ.get("PAGES", "96")), group, fetch))
    for turn in range(200):
        queue.put(incoming(turn))
        for ask in queue.next_batch():
            queue.cache.release(ask.key)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
