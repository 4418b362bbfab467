import json
import os


class Shelf:
    """Finished plans on the disk of this node."""

    def __init__(self, root):
        self.root = root
        os.makedirs(root, exist_ok=True)

    def _path(self, key):
        return os.path.join(self.root, f"{key}.json")

    def get(self, key):
        try:
            with open(self._path(key)) as f:
                return json.load(f)
        except (OSError, ValueError):
            return None

    def put(self, key, plan):
        temp = f"{self._path(key)}.{os.getpid()}"
        with open(temp, "w") as f:
            json.dump(plan, f)
        os.replace(temp, self._path(key))
