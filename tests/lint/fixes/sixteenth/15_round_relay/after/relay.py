import torch.distributed as dist

KINDS = {"train": "fit", "validate": "score"}


def kind_of(task):
    if task.name not in KINDS:
        raise ValueError(f"unknown task {task.name}")
    return KINDS[task.name]


def strip(params, prefix="server."):
    return {name.removeprefix(prefix): value for name, value in params.items()}


class Relay:
    def __init__(self, link):
        self.link = link
        self.rank = dist.get_rank()

    def next_task(self):
        order = None
        if self.rank == 0:
            try:
                task = self.link.receive()
                if task is None:
                    order = {"kind": "stop"}
                else:
                    order = {"kind": kind_of(task), "round": task.round, "params": strip(task.params)}
            except Exception as err:
                order = {"kind": "failed", "reason": repr(err)}
        box = [order]
        dist.broadcast_object_list(box, src=0)
        if box[0]["kind"] == "failed":
            raise RuntimeError(f"no task from the server: {box[0]['reason']}")
        return box[0]

    def report(self, params):
        if self.rank == 0:
            self.link.send(params)
