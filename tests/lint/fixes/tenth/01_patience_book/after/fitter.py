import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from run_state import FitPlan, RunState


class Fitter:
    def __init__(self, net, plan: FitPlan, device):
        self.device = device
        self.plan = plan
        self.net = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.opt = torch.optim.Adam(self.net.parameters(), lr=plan.lr)

    def wants_more(self, state: RunState):
        if state.epoch >= self.plan.max_epochs:
            return False
        if self.plan.patience and state.epochs_without_gain >= self.plan.patience:
            print(f"no gain for {state.epochs_without_gain} epochs, stopping")
            return False
        return True

    def take_result(self, state: RunState, score):
        if state.best_score is None or score > state.best_score:
            state.best_score = score
            state.epochs_without_gain = 0
            if state.rank == 0:
                torch.save(self.net.module.state_dict(), self.plan.out_path)

    def train_epoch(self, batches):
        self.net.train()
        for tokens, labels in batches:
            logits = self.net(tokens.to(self.device))
            loss = F.cross_entropy(logits, labels.to(self.device))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def score(self, batches):
        self.net.eval()
        tally = torch.zeros(2, device=self.device)
        for tokens, labels in batches:
            guess = self.net.module(tokens.to(self.device)).argmax(-1)
            tally[0] += (guess == labels.to(self.device)).sum()
            tally[1] += labels.numel()
        dist.all_reduce(tally)
        return (tally[0] / tally[1]).item()

    def fit(self, train_batches, dev_batches, state: RunState):
        while self.wants_more(state):
            state.epoch += 1
            state.epochs_without_gain += 1
            train_batches.sampler.set_epoch(state.epoch)
            self.train_epoch(train_batches)
            score = self.score(dev_batches)
            state.history.append(score)
            if state.rank == 0:
                print(f"epoch {state.epoch}: {score:.4f}")
            self.take_result(state, score)
        return state
