from pathlib import Path

import torch


def make_plots(out, sample, tag):
    folder = Path(out) / f"guesses{tag}" / sample
    parts = [torch.load(p) for p in sorted(folder.glob("guess_*.pt"))]
    values = torch.cat(parts)
    lines = [f"mean {values.mean():.4f}", f"std {values.std():.4f}"]
    (folder / "summary.txt").write_text("\n".join(lines))
    return {"mean": values.mean().item(), "std": values.std().item()}
