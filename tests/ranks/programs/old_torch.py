"""A torch without the newer facilities: no worker server, no dump of the calls."""

import toy
from torch._C import _distributed_c10d as bindings

for name in ("_WorkerServer", "_dump_fr_trace", "_dump_fr_trace_json"):
    if hasattr(bindings, name):
        delattr(bindings, name)


def main():
    rank = toy.begin()
    toy.train(rank)
    toy.end()


main()
