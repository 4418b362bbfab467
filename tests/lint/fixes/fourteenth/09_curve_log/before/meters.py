class Running:
    def __init__(self):
        self.total = 0.0
        self.count = 0

    def add(self, values):
        self.total += values.sum().item()
        self.count += values.numel()

    def read(self):
        return self.total / max(self.count, 1)


class Curves:
    def __init__(self):
        self.rows = []

    def note(self, epoch, loss, accuracy):
        self.rows.append((epoch, loss.read(), accuracy.read()))
        print("epoch {} loss {:.4f} accuracy {:.4f}".format(*self.rows[-1]))
