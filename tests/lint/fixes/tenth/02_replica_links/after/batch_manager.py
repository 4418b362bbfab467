import queue

import torch

from rank_links import RankLinks


class BatchManager:
    def __init__(self, model, shard_group, width=16):
        self.model = model
        self.width = width
        self.links = RankLinks(shard_group)
        self.inbox = queue.Queue()
        self.closing = False

    def submit(self, prompt):
        self.inbox.put(prompt)

    def _drain(self):
        got = []
        while len(got) < self.width:
            try:
                got.append(self.inbox.get_nowait())
            except queue.Empty:
                break
        return {"prompts": got, "stop": self.closing and not got}

    @torch.no_grad()
    def serve(self):
        answers = []
        while True:
            order = self.links.share(self._drain() if self.links.is_leader else None)
            if order["stop"]:
                break
            for prompt in order["prompts"]:
                answers.append(self.model(prompt.cuda()).argmax(-1))
        self.links.close()
        return answers
