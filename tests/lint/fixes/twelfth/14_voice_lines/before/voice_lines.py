import torch
import torch.distributed as dist

from voice_codec import VoiceCodec


class VoiceLines:
    """The first rank encodes the clips of a request, all ranks get the rows."""

    def __init__(self, width, device):
        self.rank = dist.get_rank()
        self.width = width
        self.device = device
        self.codec = VoiceCodec(width).to(device)

    def rows(self, waves, limit=None):
        if not waves:
            return None, []
        lengths = torch.zeros(len(waves), dtype=torch.long, device=self.device)
        rows = None
        if self.rank == 0:
            if limit is not None:
                limit = float(limit)
                if limit <= 0:
                    raise ValueError("the limit in seconds must be positive")
            parts = [self.codec.encode(w.to(self.device), limit) for w in waves]
            lengths.copy_(torch.tensor([p.shape[0] for p in parts]))
            rows = torch.cat(parts)
        dist.broadcast(lengths, src=0)
        if rows is None:
            rows = torch.empty(int(lengths.sum()), self.width, device=self.device)
        dist.broadcast(rows, src=0)
        return rows, lengths.tolist()
