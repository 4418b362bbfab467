class ReplayCheck:
    def __init__(self, enabled):
        self.enabled = enabled
        self.off = 0
        self.seen = 0

    def compare(self, chosen, recorded):
        if self.enabled:
            self.off += (chosen != recorded).sum().item()
            self.seen += chosen.numel()

    def pop(self):
        out, self.off, self.seen = (self.off, self.seen), 0, 0
        return out
