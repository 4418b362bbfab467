import torch
import torch.distributed as dist

from lanes import Lanes, SharedLayer


class Engine:
    def __init__(self, width, depth, device):
        self.device = device
        self.lanes = Lanes([8, 64, 512], width, device)
        self.layers = [SharedLayer(width).to(device) for _ in range(depth)]

    def _agree(self, tokens):
        most = torch.tensor([tokens], device=self.device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most.item())

    def _forward(self, lane):
        for layer in self.layers:
            layer(lane)

    def turn(self, hidden):
        padded = self._agree(hidden.shape[0])
        lane = self.lanes.pick(padded)
        lane.inputs.zero_()
        lane.inputs[: hidden.shape[0]] = hidden
        self._forward(lane)
        return lane.inputs[: hidden.shape[0]].clone()

    def idle_turn(self, tokens=1):
        padded = self._agree(tokens)
        if padded <= tokens:
            return False
        lane = self.lanes.pick(tokens)
        lane.inputs.zero_()
        self._forward(lane)
        return True
