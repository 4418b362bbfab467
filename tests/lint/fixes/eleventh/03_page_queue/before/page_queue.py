from dataclasses import dataclass

from page_cache import PageCache


@dataclass
class Ask:
    key: str
    pages: int


class PageQueue:
    """Same queue on every rank; each rank owns a slice of the heads and its own pages."""

    def __init__(self, cache: PageCache, max_batch=32):
        self.cache = cache
        self.max_batch = max_batch
        self.waiting = []

    def put(self, asks):
        for ask in asks:
            self.cache.start_load(ask.key, ask.pages)
        self.waiting.extend(asks)

    def next_batch(self):
        chosen = []
        room = self.cache.free_pages()
        for ask in self.waiting:
            if len(chosen) >= self.max_batch or ask.pages > room:
                break
            if not self.cache.loaded_everywhere(ask.key):
                continue
            chosen.append(ask)
            room -= ask.pages
        taken = set(self.cache.leader_says([ask.key for ask in chosen]))
        batch = [ask for ask in self.waiting if ask.key in taken]
        self.waiting = [ask for ask in self.waiting if ask.key not in taken]
        return batch
