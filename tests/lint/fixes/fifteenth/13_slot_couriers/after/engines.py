class Engine:
    def __init__(self, name):
        self.name = name
        self.weights = {}

    def load(self, parts):
        for part in parts:
            self.weights.update(part)


def open_engines(count):
    return [Engine(f"engine-{i}") for i in range(count)]
