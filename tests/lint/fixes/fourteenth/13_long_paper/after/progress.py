from dataclasses import dataclass


@dataclass
class Progress:
    step: int = 0
    epoch: int = 0
    accuracy: float = 0.0
    ended: bool = False

    def should_stop(self, config):
        if self.accuracy >= config.target or self.step >= config.max_steps:
            self.ended = True
        return self.ended
