import torch

from patience import Patience


class Translator:
    def __init__(self, model, world, out):
        self.world = world
        self.core = model
        self.model = self.world.wrap(model)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.out = out

    def _loss(self, net, batch):
        return torch.nn.functional.cross_entropy(net(batch[0]), batch[1])

    @torch.no_grad()
    def validate(self, batches):
        return sum(self._loss(self.core, b).item() for b in batches) / len(batches)

    def keep(self, step, score):
        torch.save({"model": self.core.state_dict(), "step": step, "score": score}, self.out)

    def train(self, batches, val_batches, check_point, early_stop=None):
        world = self.world
        stopper = Patience(**early_stop) if early_stop else None
        stopped = False
        unsaved = False
        for count, batch in enumerate(batches, start=1):
            loss = self._loss(self.model, batch)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            unsaved = True
            if count % check_point == 0:
                if world.is_main:
                    score = self.validate(val_batches)
                    self.keep(count, score)
                    if stopper:
                        stopper.note(score)
                        if stopper.done():
                            print(f"stop at {count}: no gain in {stopper.limit} checks")
                            stopped = True
                unsaved = False
                stopped = world.tell(stopped)
                if stopped:
                    break

        if unsaved and world.is_main:
            self.keep(count, self.validate(val_batches))
        world.barrier()
        return stopped
