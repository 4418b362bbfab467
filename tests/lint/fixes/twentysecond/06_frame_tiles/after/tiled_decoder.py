import torch
import torch.distributed as dist
import torch.nn as nn

from tiling import blend, gather_rows, split_tiles


class FrameDecoder(nn.Module):
    def __init__(self, channels=24, width=256, scale=16):
        super().__init__()
        self.scale = scale
        self.net = nn.Sequential(
            nn.Conv3d(channels, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv3d(width, 3 * scale * scale, 1),
        )

    def forward(self, z):
        y = self.net(z)
        b, _, t, h, w = y.shape
        y = y.reshape(b, 3, self.scale, self.scale, t, h, w)
        return y.permute(0, 1, 4, 5, 2, 6, 3).reshape(b, 3, t, h * self.scale, w * self.scale)


class TileParallelDecoder:
    """Decodes a latent clip tile by tile, the tiles dealt out over a group of ranks."""

    def __init__(self, decoder: FrameDecoder, group=None, tile=16, overlap=4):
        self.decoder = decoder
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.tile = tile
        self.overlap = overlap

    def _own(self, tiles):
        return list(range(self.rank, len(tiles), self.size))

    def _decode_tile(self, latent, tile):
        piece = latent[..., tile.top : tile.top + tile.height, tile.left : tile.left + tile.width]
        return self.decoder(piece)[0]

    @torch.no_grad()
    def decode(self, latent):
        height, width = latent.shape[-2:]
        scale = self.decoder.scale
        tiles = split_tiles(height, width, self.tile, self.overlap)
        own = [self._decode_tile(latent, tiles[i]) for i in self._own(tiles)]
        if own:
            rows = torch.stack(own)
        else:
            shape = (3, latent.shape[2], tiles[0].height * scale, tiles[0].width * scale)
            rows = latent.new_zeros(0, *shape)
        parts = gather_rows(rows, self.group)

        frames = latent.shape[2]
        canvas = latent.new_zeros(3, frames, height * scale, width * scale)
        weight = torch.zeros_like(canvas[:1])
        for i, tile in enumerate(tiles):
            blend(canvas, weight, tile, parts[i % self.size][i // self.size], scale)
        return (canvas / weight).clamp(-1, 1)
