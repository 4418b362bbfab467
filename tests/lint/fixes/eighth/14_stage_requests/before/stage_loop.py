import torch
import torch.distributed as dist
from torch import nn

from handlers import Handlers
from stage_link import StageLink


class StageLoop:
    def __init__(self, inbox, width=64):
        self.link = StageLink()
        self.inbox = inbox
        self.width = width
        self.model = nn.Linear(width, width)
        self.handlers = Handlers(self.model, "exported")

    def receive(self):
        if self.link.first:
            return next(self.inbox, [{"kind": "stop"}])
        return self.link.pull()

    @torch.no_grad()
    def forward(self):
        for prompt in self.handlers.pending:
            hidden = torch.full((1, self.width), float(prompt))
            if not self.link.first:
                dist.recv(hidden, src=self.link.rank - 1)
            hidden = self.model(hidden)
            if not self.link.last:
                dist.send(hidden, dst=self.link.rank + 1)
        self.handlers.pending.clear()

    def run(self):
        while not self.handlers.stopped:
            requests = self.receive()
            self.handlers.dispatch(requests)
            if not self.link.last:
                self.link.push(requests)
            self.forward()


def traffic():
    for turn in range(40):
        batch = [{"kind": "generate", "prompt": turn + i} for i in range(turn % 3)]
        if turn == 25:
            batch.append({"kind": "save_weights"})
        yield batch


def main():
    dist.init_process_group("gloo")
    StageLoop(traffic()).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
