import torch.nn.functional as F


class CodecTurn:
    def __init__(self, codec, critic, opt, weight=0.1):
        self.codec = codec
        self.critic = critic
        self.opt = opt
        self.weight = weight

    def __call__(self, wave):
        back = self.codec(wave)
        for p in self.critic.module.parameters():
            p.requires_grad_(False)
        loss = F.l1_loss(back, wave) - self.weight * self.critic.module(back).mean()
        for p in self.critic.module.parameters():
            p.requires_grad_(True)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return back, loss.item()
