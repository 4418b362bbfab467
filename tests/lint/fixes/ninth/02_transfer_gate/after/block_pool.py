class BlockPool:
    def __init__(self, total, size=64):
        self.free = total
        self.size = size
        self.held = {}
        self.leaving = {}

    def blocks_for(self, length):
        return -(-length // self.size)

    def take(self, rid, length):
        need = self.blocks_for(length)
        self.free -= need
        self.held[rid] = need

    def release_when(self, rid, event):
        self.leaving[rid] = event

    def reclaim(self):
        for rid, event in list(self.leaving.items()):
            if event.query():
                del self.leaving[rid]
                self.free += self.held.pop(rid)
