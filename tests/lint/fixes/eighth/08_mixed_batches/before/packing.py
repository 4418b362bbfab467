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
    batches = pad_to_multiple(list(batches), workers)
    share = len(batches) // workers
    return [batches[i * share:(i + 1) * share] for i in range(workers)]
