import torch
import torch.distributed as dist


class InferenceSchedule:
    def __init__(self, micro_batches, stages, stage_id):
        self.micro_batches, self.stages, self.stage_id = micro_batches, stages, stage_id

    def steps(self):
        for micro_batch in range(self.micro_batches):
            cmds = []
            cmds.append("load" if self.stage_id == 0 else "recv")
            cmds.append("forward")
            if self.stage_id < self.stages - 1:
                cmds.append("send")
            yield micro_batch, cmds


class PipelineEngine:
    def __init__(self, module, loss_fn, pair_groups, act_shape, micro_batches, stage_id, num_stages):
        self.module, self.loss_fn = module, loss_fn
        self.pair_groups, self.act_shape = pair_groups, act_shape
        self.micro_batches = micro_batches
        self.stage_id, self.num_stages = stage_id, num_stages
        self.fwd_outputs = []

    def is_last_stage(self):
        return self.stage_id == self.num_stages - 1

    def _exec_schedule(self, sched, data_iter):
        x = None
        for micro_batch, cmds in sched.steps():
            for cmd in cmds:
                if cmd == "load":
                    x = next(data_iter).cuda()
                elif cmd == "recv":
                    x = torch.empty(self.act_shape, device="cuda")
                    dist.broadcast(x, self.stage_id - 1, group=self.pair_groups[self.stage_id - 1])
                elif cmd == "forward":
                    x = self.module(x)
                    if self.is_last_stage():
                        self.fwd_outputs.append(self.loss_fn(x))
                elif cmd == "send":
                    dist.broadcast(x, self.stage_id, group=self.pair_groups[self.stage_id])

    def eval_batch(self, data_iter, compute_loss=True):
        self.module.eval()
        self.fwd_outputs = []
        eval_output = None
        sched = InferenceSchedule(self.micro_batches, self.num_stages, self.stage_id)
        with torch.no_grad():
            self._exec_schedule(sched, data_iter)
        if self.is_last_stage():
            eval_output = torch.stack(self.fwd_outputs).mean()
        if compute_loss:
            if eval_output is None:
                eval_output = torch.zeros((), device="cuda")
            dist.broadcast(eval_output, self.num_stages - 1)
        return eval_output


def evaluate_all(engine, iterators):
    return [engine.eval_batch(it, compute_loss=False) for it in iterators]
