import torch.nn.functional as F


class CriticTurn:
    """Lets the critic learn only while it is not far ahead of the codec."""

    def __init__(self, critic, opt, ease=0.5):
        self.critic = critic
        self.opt = opt
        self.ease = ease
        self.last = 0.0

    def __call__(self, real, fake):
        up = self.critic(real)
        down = self.critic(fake.detach())
        loss = (F.relu(1 - up) + F.relu(1 + down)).mean()
        self.opt.zero_grad()
        level = loss.detach()
        if level.item() > self.last * self.ease:
            loss.backward()
            self.opt.step()
        self.last = level.item()
        return self.last
