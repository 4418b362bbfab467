import torch.distributed as dist

from p2p import communicate


class InterleavedSchedule:
    def __init__(self, chunks, num_microbatch, loss_fn):
        assert num_microbatch % dist.get_world_size() == 0
        self.chunks, self.num_microbatch, self.loss_fn = chunks, num_microbatch, loss_fn
        self.stage, self.num_stages = dist.get_rank(), dist.get_world_size()
        self.prev = (self.stage - 1) % self.num_stages
        self.next = (self.stage + 1) % self.num_stages

    def send_forward_recv_forward(self, output, last, first):
        send_dst = None if last else self.next
        recv_src = None if first else self.prev
        return communicate(output, send_dst, recv_src, send_first=self.stage % 2 == 0)

    def run_forward(self, batches):
        outputs = []
        total = self.num_microbatch * len(self.chunks)
        received = None
        if self.stage != 0:
            received = communicate(None, None, self.prev)

        for i in range(total):
            chunk = (i // self.num_stages) % len(self.chunks)
            first_stage = self.stage == 0 and chunk == 0
            last_stage = self.stage == self.num_stages - 1 and chunk == len(self.chunks) - 1
            if first_stage:
                group = i // (self.num_stages * len(self.chunks))
                received = batches[group * self.num_stages + i % self.num_stages]
            out = self.chunks[chunk](received)
            if last_stage:
                outputs.append(self.loss_fn(out))
            following = ((i + 1) // self.num_stages) % len(self.chunks)
            no_recv = i + 1 == total or (self.stage == 0 and following == 0)
            received = self.send_forward_recv_forward(out, last_stage, no_recv)
        return outputs
