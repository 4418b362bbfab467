import torch.distributed as dist


class ClosedLoopEvaluation:
    def __init__(self, scenarios, rank, world_size):
        self.scenarios = scenarios
        self.rank = rank
        self.world_size = world_size

    def run_distributed(self, planner):
        scores = [planner.simulate(s) for s in self.scenarios[self.rank :: self.world_size]]
        if dist.is_available() and dist.is_initialized():
            dist.barrier()
        return scores


def closed_loop_validate(planner, scenarios, ddp_rank, ddp_world_size):
    evaluation = ClosedLoopEvaluation(scenarios, ddp_rank, ddp_world_size)
    return evaluation.run_distributed(planner)
