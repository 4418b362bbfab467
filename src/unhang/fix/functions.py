"""The functions that a change puts into a file, and what they are called there."""

from __future__ import annotations

AGREED = '''\
def {name}(holds{parameter}):
    """Whether it holds on every rank: all of them go the same way."""
    flag = {torch}.tensor(float(bool(holds)){device})
    {dist}.all_reduce(flag, op={dist}.ReduceOp.MIN{group})
    return flag.item() > 0
'''
ANY_RANK = AGREED.replace("every rank", "at least one rank").replace("MIN", "MAX")
ON_ALL = '''\
def {name}(mask{parameter}):
    """The same mask on every rank: it holds where it does on all of them."""
    everywhere = mask.to({torch}.uint8)
    {dist}.all_reduce(everywhere, op={dist}.ReduceOp.MIN{group})
    return everywhere.bool()
'''
MEAN = '''\
def {name}(value{parameter}):
    """The mean over all ranks, the same on each."""
    total = {torch}.tensor([float(value), 1.0]{device})
    {dist}.all_reduce(total{group})
    return (total[0] / total[1]).item()
'''
FROM_ONE = '''\
def {name}(value):
    """What rank {rank} has, on every rank."""
    box = [value]
    {dist}.broadcast_object_list(box, src={rank})
    return box[0]
'''
IN_STEP = '''\
def {name}(items{parameter}):
    """Ends on every rank as soon as one of them has no item left."""
    items, end = iter(items), object()
    while True:
        item = next(items, end)
        has_item = {torch}.tensor(float(item is not end){device})
        {dist}.all_reduce(has_item, op={dist}.ReduceOp.MIN{group})
        if has_item.item() == 0:
            return
        yield item
'''
IN_FULL = '''\
def {name}(items{parameter}):
    """Ends on every rank when all are through: one that has no item left gives its last one again."""
    items, end, item = iter(items), object(), None
    while True:
        new = next(items, end)
        is_left = {torch}.tensor(float(new is not end){device})
        {dist}.all_reduce(is_left, op={dist}.ReduceOp.MAX{group})
        if is_left.item() == 0:
            return
        item = item if new is end else new
        yield item
'''
MOST = '''\
def {name}(count{parameter}):
    """The most of what any rank has, on every rank."""
    most = {torch}.tensor(float(count){device})
    {dist}.all_reduce(most, op={dist}.ReduceOp.MAX{group})
    return int(most.item())
'''
OF_ALL = '''\
def {name}(values{parameter}):
    """The same keys on every rank, in one order; what a rank has not counts zero."""
    keys = [None] * {dist}.get_world_size({argument})
    {dist}.all_gather_object(keys, list(values){group})
    zero = next(iter(values.values()), {torch}.zeros(())) * 0
    return {{key: values.get(key, zero) for key in sorted(set().union(*keys))}}
'''


# What they are called in the file, where that is free.
NAMES = {
    AGREED: "agreed",
    ANY_RANK: "any_rank",
    ON_ALL: "on_all_ranks",
    MEAN: "mean_of_ranks",
    IN_STEP: "in_step",
    IN_FULL: "in_full",
    MOST: "most_of_all",
    OF_ALL: "of_all_ranks",
    FROM_ONE: "from_first_rank",
}
