"""Fixed pool of key-value blocks of one rank."""
import torch


class BlockPool:
    def __init__(self, layers, heads, head_dim, block=32, share=0.9):
        free, _ = torch.cuda.mem_get_info()
        per_block = 2 * layers * heads * head_dim * block * 2
        self.block = block
        self.total = int(free * share) // per_block
        self.free_blocks = list(range(self.total))
        self.held = {}

    def blocks_for(self, tokens):
        return -(-tokens // self.block)

    def available(self):
        return len(self.free_blocks)

    def take(self, name, tokens):
        need = self.blocks_for(tokens)
        self.held[name] = [self.free_blocks.pop() for _ in range(need)]
        return self.held[name]

    def give_back(self, name):
        self.free_blocks.extend(self.held.pop(name))
