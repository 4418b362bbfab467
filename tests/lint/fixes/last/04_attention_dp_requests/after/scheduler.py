import zmq

import torch.distributed as dist

from comm_utils import broadcast_pyobj


class Scheduler:
    def __init__(self, attn_dp_size, attn_tp_size, recv_socket):
        world_rank = dist.get_rank()
        self.attn_dp_rank = world_rank // attn_tp_size
        self.attn_tp_rank = world_rank % attn_tp_size
        self.attn_tp_size = attn_tp_size
        self.attn_tp_first = self.attn_dp_rank * attn_tp_size
        self.recv_socket = recv_socket
        self.waiting_queue = []
        for i in range(attn_dp_size):
            ranks = list(range(i * attn_tp_size, (i + 1) * attn_tp_size))
            group = dist.new_group(ranks, backend="gloo")
            if world_rank in ranks:
                self.attn_tp_cpu_group = group

    def recv_requests(self):
        recv_reqs = []
        if self.attn_tp_rank == 0:
            while True:
                try:
                    recv_reqs.append(self.recv_socket.recv_pyobj(zmq.NOBLOCK))
                except zmq.ZMQError:
                    break
        if self.attn_tp_size > 1:
            recv_reqs = broadcast_pyobj(
                recv_reqs,
                dist.get_rank(),
                self.attn_tp_cpu_group,
                src=self.attn_tp_first,
            )
        return recv_reqs

    def event_loop(self, run_batch):
        while True:
            self.waiting_queue.extend(self.recv_requests())
            run_batch(self.waiting_queue)
