from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Inlet:
    source: int
    name: str
    shape: tuple


class Stage:
    """One part of a model that is cut into stages; values may pass over stages in between."""

    def __init__(self, module, index, count, inlets, outlets, device):
        self.module = module.to(device)
        self.is_first, self.is_last = index == 0, index == count - 1
        self.inlets, self.outlets = inlets, outlets
        self.device = device
        self.saved, self.pending = {}, []

    def _receive_values(self):
        buffers, ops = {}, []
        for inlet in self.inlets:
            buffer = torch.empty(inlet.shape, device=self.device)
            buffers[inlet.name] = buffer
            ops.append(dist.P2POp(dist.irecv, buffer, inlet.source))
        if ops:
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        return {name: b.requires_grad_() for name, b in buffers.items()}

    def _send_values(self, values):
        ops = [dist.P2POp(dist.isend, values[name].detach().contiguous(), target)
               for name, targets in self.outlets.items() for target in targets]
        if ops:
            self.pending += dist.batch_isend_irecv(ops)

    def forward_chunk(self, number, chunk=None):
        inputs = {"x": chunk} if self.is_first else self._receive_values()
        values = self.module(**inputs)
        self.saved[number] = (inputs, values)
        if not self.is_last:
            self._send_values(values)
        return values

    def backward_chunk(self, number, loss=None):
        inputs, values = self.saved.pop(number)
        if self.is_last:
            loss.backward()
        else:
            tensors, grads = [], []
            for name in sorted(self.outlets, key=lambda n: max(self.outlets[n]), reverse=True):
                total = torch.zeros_like(values[name])
                for target in sorted(self.outlets[name], reverse=True):
                    part = torch.empty_like(values[name])
                    dist.recv(part, target)
                    total += part
                tensors.append(values[name])
                grads.append(total)
            torch.autograd.backward(tensors, grads)
        for inlet in sorted(self.inlets, key=lambda i: i.source, reverse=True):
            dist.send(inputs[inlet.name].grad.contiguous(), inlet.source)

    def finish(self):
        for work in self.pending:
            work.wait()
        self.pending.clear()
