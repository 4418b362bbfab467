import torch
import torch.nn.functional as F


class FlowMatching:
    def __init__(self, experts, seed, dp_rank, names=("high", "low")):
        self.experts = experts
        self.names = names
        self.seed = seed
        self.dp_rank = dp_rank

    def generator(self, rollout, micro_batch):
        g = torch.Generator()
        g.manual_seed(self.seed + 1_000_003 * rollout + 1009 * micro_batch + self.dp_rank)
        return g

    def pick_expert(self, rollout, micro_batch, generator):
        if len(self.names) == 1:
            return self.names[0]
        return self.names[int(torch.randint(len(self.names), (1,), generator=generator))]

    def __call__(self, batch, rollout, micro_batch):
        generator = self.generator(rollout, micro_batch)
        name = self.pick_expert(rollout, micro_batch, generator)
        clean = batch["latents"].cuda()
        low, high = self.experts.span(name)
        sigma = low + (high - low) * torch.rand(clean.size(0), generator=generator)
        noise = torch.randn(clean.shape, generator=generator).cuda()
        sigma = sigma.cuda()
        mix = sigma.view(-1, 1, 1, 1, 1)
        noisy = (1 - mix) * clean + mix * noise
        velocity = self.experts(name, noisy, sigma, batch["text"].cuda())
        return name, F.mse_loss(velocity.float(), noise - clean)
