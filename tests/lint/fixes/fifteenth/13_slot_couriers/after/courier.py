import torch.distributed as dist


class Courier:
    def __init__(self, model):
        self.model = model
        self.engine = None
        self.slot = None
        self.slot_group = None

    def connect(self, engines, counts, offsets=None):
        if offsets is None:
            offsets, place = [], 0
            for count in counts:
                offsets.append(place)
                place += count
        self.slot_group = None
        rank = dist.get_rank()
        for engine, start, count in zip(engines, offsets, counts):
            end = start + count
            members = list(range(start, end))
            group = dist.new_group(ranks=members, backend="gloo")
            if start <= rank < end:
                self.engine = engine
                self.slot = start
                self.slot_group = group

    def local_part(self):
        return {name: value.detach().cpu() for name, value in self.model.named_parameters()}

    def deliver(self):
        if self.slot_group is not None:
            leads = dist.get_rank() == self.slot
            parts = [None] * dist.get_world_size(self.slot_group) if leads else None
            dist.gather_object(self.local_part(), parts, dst=self.slot, group=self.slot_group)
            if leads:
                self.engine.load(parts)
        dist.barrier()
