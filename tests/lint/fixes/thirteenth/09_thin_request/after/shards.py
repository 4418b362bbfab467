def shard_list(items, rank, world):
    """Contiguous shards that keep the order; the first ones take the rest."""
    base, rest = divmod(len(items), world)
    start = rank * base + min(rank, rest)
    return items[start : start + base + (rank < rest)]
