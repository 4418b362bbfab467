import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classroom:
    def __init__(self, net, device, lr):
        self.device = device
        self.net = DDP(net.to(device), device_ids=[device.index])
        self.loss_fn = nn.CrossEntropyLoss()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)

    def one_pass(self, loader, mode, limit=None):
        training = mode == "train"
        self.net.train(training)
        seen, total, hits = 0, 0.0, 0
        with torch.set_grad_enabled(training):
            for step, (images, labels) in enumerate(loader):
                if limit is not None and step >= limit:
                    break
                images, labels = images.to(self.device), labels.to(self.device)
                out = self.net(images)
                loss = self.loss_fn(out, labels)
                if training:
                    self.opt.zero_grad()
                    loss.backward()
                    self.opt.step()
                seen += labels.numel()
                total += loss.item() * labels.numel()
                hits += (out.argmax(1) == labels).sum().item()
        return {"loss": total / seen, "top1": hits / seen}
