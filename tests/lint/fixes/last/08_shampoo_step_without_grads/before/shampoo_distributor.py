import torch
import torch.distributed as dist


class DDPDistributor:
    """Every rank computes the update of its own share of the parameters."""

    def __init__(self, params):
        self.params = list(params)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.owned = [p for i, p in enumerate(self.params) if i % self.world_size == self.rank]
        shares = [
            sum(p.numel() for i, p in enumerate(self.params) if i % self.world_size == r)
            for r in range(self.world_size)
        ]
        self.buffer_size = max(shares)

    def merge_and_block_gradients(self):
        with_grad = [p for p in self.owned if p.grad is not None]
        return with_grad, [p.grad for p in with_grad]

    def update_params(self, params, directions):
        device = self.params[0].device
        own = torch.zeros(self.buffer_size, device=device)
        by_param = dict(zip(params, directions))
        offset = 0
        for p in self.owned:
            if p in by_param:
                own[offset:offset + p.numel()] = by_param[p].flatten()
            offset += p.numel()
        out = torch.empty(self.buffer_size * self.world_size, device=device)
        dist.all_gather_into_tensor(out, own)
        for r, chunk in enumerate(out.chunk(self.world_size)):
            offset = 0
            for p in (q for i, q in enumerate(self.params) if i % self.world_size == r):
                p.add_(chunk[offset:offset + p.numel()].view_as(p))
                offset += p.numel()
