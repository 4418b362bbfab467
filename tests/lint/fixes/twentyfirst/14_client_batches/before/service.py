import sys

import torch.distributed as dist

from actor import TrainActor
from inbox import Inbox
from validators import BadRequest, check_samples


def serve(actor, inbox, max_tokens=8192):
    while True:
        box = [inbox.next() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)
        kind, ticket, payload = box[0]
        try:
            if kind == "stop":
                break
            if kind == "forward_backward":
                result = actor.forward_backward(check_samples(payload, actor.size, max_tokens))
            else:
                result = actor.optim_step(payload)
        except BadRequest as error:
            result = error
        if dist.get_rank() == 0:
            inbox.reply(ticket, result)


if __name__ == "__main__":
    dist.init_process_group("cpu:gloo,cuda:nccl")
    serve(TrainActor(sys.argv[1]), Inbox(sys.argv[2]) if dist.get_rank() == 0 else None)
    dist.destroy_process_group()
