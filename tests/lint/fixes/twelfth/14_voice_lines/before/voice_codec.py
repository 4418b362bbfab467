import torch
import torch.nn as nn


class VoiceCodec(nn.Module):
    RATE = 16000
    HOP = 640

    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Conv1d(1, width, self.HOP, stride=self.HOP)

    def encode(self, wave, seconds):
        if seconds is not None:
            wave = wave[: max(int(seconds * self.RATE), self.HOP)]
        return self.net(wave[None])[0].t()
