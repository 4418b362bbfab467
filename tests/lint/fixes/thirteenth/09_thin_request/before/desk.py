import json
import sys

import torch.distributed as dist


class Desk:
    """Rank 0 reads one request a line and hands it to all actors."""

    def __init__(self, actor):
        self.actor = actor

    def _next(self):
        box = [None]
        if dist.get_rank() == 0:
            line = sys.stdin.readline()
            box[0] = json.loads(line) if line.strip() else None
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def run(self):
        while (request := self._next()) is not None:
            try:
                if request["op"] == "step":
                    reply = self.actor.step()
                else:
                    reply = self.actor.forward_backward(request["samples"])
            except ValueError as err:
                reply = {"error": str(err)}
            if dist.get_rank() == 0:
                print(json.dumps(reply), flush=True)
