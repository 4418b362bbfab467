import os


class RunDirs:
    def __init__(self, root, name):
        self.base = os.path.join(root, name)
        self.weights = os.path.join(self.base, "weights")

    def taken(self):
        return os.path.exists(os.path.join(self.base, "out.log"))

    def create(self):
        os.makedirs(self.weights, exist_ok=True)
        open(os.path.join(self.base, "out.log"), "a").close()

    def newest(self):
        files = sorted(os.listdir(self.weights)) if os.path.isdir(self.weights) else []
        return os.path.join(self.weights, files[-1]) if files else None
