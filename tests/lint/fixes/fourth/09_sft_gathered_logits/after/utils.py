import torch


def pad_batch(sequences, padding_value):
    longest = max(s.size(0) for s in sequences)
    out = sequences[0].new_full((len(sequences), longest), padding_value)
    for i, s in enumerate(sequences):
        out[i, : s.size(0)] = s
    return out


def collate(examples, pad_token_id=0):
    input_ids = pad_batch([torch.as_tensor(e["input_ids"]) for e in examples], pad_token_id)
    labels = pad_batch([torch.as_tensor(e["labels"]) for e in examples], -100)
    return {"input_ids": input_ids, "attention_mask": (input_ids != pad_token_id).long(), "labels": labels}


def compute_token_accuracy(logits, labels, ignore_index=-100):
    predictions = logits.argmax(dim=-1)
    mask = labels != ignore_index
    total = mask.sum()
    correct = ((predictions == labels) & mask).sum()
    return correct.item() / total.item() if total > 0 else 0.0
