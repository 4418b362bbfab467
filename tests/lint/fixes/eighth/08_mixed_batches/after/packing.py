import copy


def blank_like(batch):
    filler = copy.deepcopy(batch)
    filler["weight"] = filler["weight"] * 0.0
    return filler


def pad_to_multiple(batches, multiple):
    if not batches:
        return batches
    while len(batches) % multiple:
        batches.append(blank_like(batches[-1]))
    return batches


def assign(batches, workers):
    pictured = pad_to_multiple([b for b in batches if b["pixels"] is not None], workers)
    plain = pad_to_multiple([b for b in batches if b["pixels"] is None], workers)
    batches = pictured + plain
    return [batches[i::workers] for i in range(workers)]
