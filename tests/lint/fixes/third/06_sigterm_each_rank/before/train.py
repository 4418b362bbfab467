import signal

import torch
import torch.distributed as dist


class SIGTERMException(SystemExit):
    pass


class SignalConnector:
    def __init__(self, trainer):
        self.trainer = trainer
        self.received_sigterm = False

    def register(self):
        signal.signal(signal.SIGTERM, self._sigterm_handler)

    def _sigterm_handler(self, signum, frame):
        self.received_sigterm = True


class TrainingEpochLoop:
    def __init__(self, trainer, connector):
        self.trainer = trainer
        self.connector = connector
        self.batch_idx = 0

    def advance(self, fetcher):
        if self.connector.received_sigterm:
            raise SIGTERMException
        batch = next(fetcher)
        loss = self.trainer.model(batch).mean()
        loss.backward()
        self.trainer.optimizer.step()
        self.trainer.optimizer.zero_grad()
        self.batch_idx += 1

    def run(self, loader):
        fetcher = iter(loader)
        while self.batch_idx < len(loader):
            self.advance(fetcher)


def fit(trainer, loader):
    trainer.model = torch.nn.parallel.DistributedDataParallel(trainer.model)
    connector = SignalConnector(trainer)
    connector.register()
    TrainingEpochLoop(trainer, connector).run(loader)
    dist.barrier()
