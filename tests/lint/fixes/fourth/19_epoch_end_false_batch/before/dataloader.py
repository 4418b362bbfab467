class MultiDatasetExhausted(Exception):
    pass


def random_dataloader_iterator(step, backends, rng):
    alive = {k: v for k, v in backends.items() if not v.exhausted}
    while alive:
        name = rng.choice(sorted(alive))
        try:
            return next(alive[name])
        except StopIteration:
            alive[name].exhausted = True
            del alive[name]
        except MultiDatasetExhausted:
            return False
    return False
