import torch


class Optimization:
    def __init__(self, parameters):
        self.optimizer = torch.optim.AdamW(parameters)

    def _validate_loss(self, loss):
        with torch.no_grad():
            if torch.isnan(loss):
                raise ValueError("the loss is NaN")

    def step_weights(self, loss):
        self._validate_loss(loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
