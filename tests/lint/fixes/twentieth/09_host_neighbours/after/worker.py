"""One worker of a tensor-parallel text server."""
import argparse
import os
import pickle

import torch
import torch.distributed as dist
import zmq
from transformers import AutoModelForCausalLM, AutoTokenizer

from neighbours import on_host_of


class RequestFeed:
    """Local readers get the requests over ipc, remote ones over tcp."""

    def __init__(self, group, folder, port):
        self.rank = dist.get_rank(group)
        local = on_host_of(group)
        context = zmq.Context.instance()
        if self.rank == 0:
            self.out = context.socket(zmq.PUB)
            self.out.bind(f"ipc://{folder}/feed")
            if not all(local):
                self.out.bind(f"tcp://*:{port}")
        else:
            self.inp = context.socket(zmq.SUB)
            self.inp.setsockopt(zmq.SUBSCRIBE, b"")
            host = os.environ["MASTER_ADDR"]
            self.inp.connect(f"ipc://{folder}/feed" if local[self.rank] else f"tcp://{host}:{port}")
        dist.barrier(group=group)

    def share(self, item=None):
        if self.rank == 0:
            self.out.send(pickle.dumps(item))
            return item
        return pickle.loads(self.inp.recv())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", default="/tmp/feed")
    parser.add_argument("--port", type=int, default=5907)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    control = dist.new_group(backend="gloo")
    os.makedirs(args.folder, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, tp_plan="auto", torch_dtype="auto")
    feed = RequestFeed(control, args.folder, args.port)

    inbox = zmq.Context.instance().socket(zmq.REP) if dist.get_rank() == 0 else None
    if inbox is not None:
        inbox.bind("tcp://*:5906")
    while True:
        text = feed.share(inbox.recv_string() if inbox is not None else None)
        ids = tokenizer(text, return_tensors="pt").input_ids.cuda()
        out = model.generate(ids, max_new_tokens=128, do_sample=False)
        if inbox is not None:
            inbox.send_string(tokenizer.decode(out[0, ids.size(1):], skip_special_tokens=True))


if __name__ == "__main__":
    main()
