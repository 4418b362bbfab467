from collections import OrderedDict

import psutil


class RawCache:
    """Keeps loaded files as long as the host has enough free memory."""

    def __init__(self, keep_free):
        self.keep_free = keep_free
        self.entries = OrderedDict()

    def get(self, key):
        if key in self.entries:
            self.entries.move_to_end(key)
            return self.entries[key]
        return None

    def put(self, key, value):
        self.entries[key] = value
        while len(self.entries) > 1 and psutil.virtual_memory().available < self.keep_free:
            self.entries.popitem(last=False)
