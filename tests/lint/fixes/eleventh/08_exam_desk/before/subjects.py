import json
import os


class Subject:
    def __init__(self, path):
        self.path = path
        self.name = os.path.splitext(os.path.basename(path))[0]

    def items(self):
        with open(self.path) as f:
            return [json.loads(line) for line in f if line.strip()]
