"""Rules on the network between nodes: sockets, InfiniBand and RoCE."""
