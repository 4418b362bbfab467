import zmq
from lightning.pytorch.callbacks import Callback


class TrainingControllerZMQ(Callback):
    """Receives stop and learning-rate commands from the GUI."""

    def __init__(self, address="tcp://127.0.0.1:9000", topic="", poll_timeout=10):
        super().__init__()
        self.address = address
        self.topic = topic
        self.poll_timeout = poll_timeout
        self.context = None
        self.socket = None

    def setup(self, trainer, pl_module, stage):
        if trainer.is_global_zero and self.socket is None:
            self.context = zmq.Context()
            self.socket = self.context.socket(zmq.SUB)
            self.socket.subscribe(self.topic)
            self.socket.connect(self.address)

    def teardown(self, trainer, pl_module, stage):
        if self.socket is not None:
            self.socket.close()
            self.context.term()
            self.socket = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_global_zero:
            if self.socket.poll(self.poll_timeout, zmq.POLLIN):
                msg = self.socket.recv_json(flags=zmq.NOBLOCK)
                if msg["command"] == "stop":
                    trainer.should_stop = True
                elif msg["command"] == "set_lr":
                    for group in trainer.optimizers[0].param_groups:
                        group["lr"] = float(msg["lr"])
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(trainer.should_stop, all=False)
