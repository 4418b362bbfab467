import torch
import torch.nn as nn
from transformers import AutoModel

from overlap import AnswerOverlap


class SpanReader(nn.Module):
    def __init__(self, name, tokenizer, device):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(name)
        self.span = nn.Linear(self.encoder.config.hidden_size, 2)
        self.tokenizer = tokenizer
        self.overlap = AnswerOverlap(device)

    def forward(self, batch):
        hidden = self.encoder(batch["input_ids"], attention_mask=batch["attention_mask"])[0]
        start, end = self.span(hidden).unbind(-1)
        loss = nn.functional.cross_entropy(start, batch["start"])
        loss = loss + nn.functional.cross_entropy(end, batch["end"])
        if not self.training:
            firsts, lasts = start.argmax(-1), end.argmax(-1)
            texts = []
            for i in range(len(batch["answers"])):
                ids = batch["input_ids"][i, firsts[i]: lasts[i] + 1]
                texts.append(self.tokenizer.decode(ids, skip_special_tokens=True))
            self.overlap(texts, batch["answers"])
        return loss / 2
