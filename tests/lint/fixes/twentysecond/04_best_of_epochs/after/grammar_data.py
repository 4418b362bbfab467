import csv

from torch.utils.data import Dataset


class GrammarPairs(Dataset):
    def __init__(self, tokenizer, path, max_len):
        self.tokenizer = tokenizer
        self.max_len = max_len
        with open(path, newline="") as f:
            self.rows = [(r["input"], r["target"]) for r in csv.DictReader(f)]

    def __len__(self):
        return len(self.rows)

    def _encode(self, text):
        return self.tokenizer(
            text, max_length=self.max_len, padding="max_length", truncation=True, return_tensors="pt"
        )

    def __getitem__(self, index):
        source, target = self.rows[index]
        src = self._encode("grammar: " + source)
        tgt = self._encode(target)
        return {
            "input_ids": src["input_ids"].squeeze(0),
            "attention_mask": src["attention_mask"].squeeze(0),
            "labels": tgt["input_ids"].squeeze(0),
        }
