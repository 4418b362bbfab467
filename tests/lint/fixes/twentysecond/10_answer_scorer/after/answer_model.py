import json

import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import BertModel


class QuestionSet(Dataset):
    def __init__(self, path, tokenizer, max_len=128):
        with open(path) as f:
            pack = json.load(f)
        self.rows = pack["questions"]
        self.num_answers = pack["num_answers"]
        self.tokenizer = tokenizer
        self.max_len = max_len

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        enc = self.tokenizer(
            row["question"], row["tags"], max_length=self.max_len, padding="max_length", truncation=True
        )
        target = torch.zeros(self.num_answers)
        for answer, score in row["answers"]:
            target[answer] = score
        return torch.tensor(enc["input_ids"]), torch.tensor(enc["attention_mask"]), target


class AnswerModel(nn.Module):
    def __init__(self, config, num_answers):
        super().__init__()
        self.bert = BertModel(config)
        self.classifier = nn.Linear(config.hidden_size, num_answers)

    def forward(self, ids, mask, labels):
        pooled = self.bert(ids, attention_mask=mask).pooler_output
        logits = self.classifier(pooled)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return loss * labels.size(1), logits
