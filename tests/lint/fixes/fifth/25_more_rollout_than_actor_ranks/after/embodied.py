import torch
import torch.distributed as dist


class EmbodiedActor:
    def __init__(self, model, placement, rank):
        self.model = model
        self.placement = placement
        self.rank = rank
        self.dst_ranks = list(range(rank, placement.get_world_size("rollout"), placement.get_world_size("actor")))

    def sync_model_to_rollout(self):
        state = self.model.state_dict()
        works = []
        for dst in self.dst_ranks:
            peer = self.placement.offset("rollout") + dst
            for name in sorted(state):
                works.append(dist.isend(state[name].contiguous(), dst=peer))
        for work in works:
            work.wait()


class RolloutWorker:
    def __init__(self, model, placement, rank):
        self.model = model
        self.placement = placement
        self.rank = rank
        self.src_rank = rank % placement.get_world_size("actor")

    @torch.no_grad()
    def sync_model_from_actor(self):
        peer = self.placement.offset("actor") + self.src_rank
        state = self.model.state_dict()
        for name in sorted(state):
            dist.recv(state[name], src=peer)


def run(placement, model, steps, train, rollout):
    rank = dist.get_rank()
    actors = placement.get_world_size("actor")
    if rank < actors:
        worker = EmbodiedActor(model, placement, rank)
        for _ in range(steps):
            worker.sync_model_to_rollout()
            train(model)
    else:
        worker = RolloutWorker(model, placement, rank - actors)
        for _ in range(steps):
            worker.sync_model_from_actor()
            rollout(model)
