"""W1: GAN-diffusion: two generators and a discriminator, each its own DDP on the default group (static_graph, no buffer broadcast);
per-rank DataLoaders with workers. Order: per-parameter broadcast of G1,G2,D; DDP ctors; per iteration D step (optional lazy R1),
G step with D frozen; per epoch rank-0 sampling + checkpoint, then every rank validates without collectives; final barrier."""
import argparse, os, resource, time, datetime, numpy as np, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler
ap = argparse.ArgumentParser()
ap.add_argument("--fault", default="none"); ap.add_argument("--epochs", type=int, default=2); ap.add_argument("--pg-timeout", type=float, default=8)
ap.add_argument("--dl-timeout", type=float, default=0); ap.add_argument("--workers", type=int, default=1); ap.add_argument("--mp", default="fork")
ap.add_argument("--retain-graph", type=int, default=1); ap.add_argument("--lazy-reg", type=int, default=4); ap.add_argument("--prebroadcast", type=int, default=1)
ap.add_argument("--static-graph", type=int, default=1); ap.add_argument("--r1-ddp", type=int, default=0)
a = ap.parse_args(); NZ, T = 8, 4

class Volumes(Dataset):                                          # 4 modalities eagerly in RAM, as in the original
    def __init__(s, n, rank): s.x = np.random.RandomState(7).randn(4, n, 1, 16, 16).astype("float32"); s.rank = rank
    def __len__(s): return s.x.shape[1]
    def __getitem__(s, i):
        if a.fault == "item_hang" and s.rank == 1 and i >= 16: time.sleep(60)
        if a.fault == "fd_leak" and s.rank == 1: s.keep = getattr(s, "keep", []) + [open(__file__)]
        return tuple(torch.from_numpy(s.x[m, i]) for m in range(4))
    def __getstate__(s):                                         # what spawn pickles into every worker, every epoch
        if a.fault == "slow_spawn" and s.rank == 0: time.sleep(a.pg_timeout + 4)
        return s.__dict__

def started(loader, rank):                                       # worker start-up happens in the parent, before any `timeout=` applies
    if a.fault == "slow_first_batch" and rank == 0: time.sleep(a.pg_timeout + 4)
    yield from loader
def conv(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.SiLU())
class Gen(nn.Module):
    def __init__(s, extra=0):
        super().__init__(); s.t = nn.Embedding(T, 16); s.z = nn.Linear(NZ, 16); s.a = conv(4 + extra, 16); s.b = conv(16, 16); s.o = nn.Conv2d(16, 1, 1)
    def forward(s, xt, cond, t, z, prev=None):
        h = s.a(torch.cat([xt, *cond] + ([prev] if prev is not None else []), 1)) + (s.t(t) + s.z(z))[:, :, None, None]
        return torch.tanh(s.o(s.b(h)))
class Disc(nn.Module):
    def __init__(s):
        super().__init__(); s.t = nn.Embedding(T, 16); s.a = conv(2, 16); s.b = conv(16, 16); s.o = nn.Linear(16, 1)
        if a.fault == "rank0_sample_ddp": s.bn = nn.BatchNorm2d(16)
    def forward(s, x, t, xtp1):
        h = s.b(s.a(torch.cat([x, xtp1], 1)) + s.t(t)[:, :, None, None]); h = s.bn(h) if hasattr(s, "bn") else h
        return s.o(h.mean((2, 3)))
def noise(x, t): k = (t.float() + 1)[:, None, None, None] / T; return (1 - k) * x + k * torch.randn_like(x)
def req(m, on):
    for p in m.parameters(): p.requires_grad_(on)

def train(rank, world):
    torch.manual_seed(1024 + rank)
    if a.fault == "fd_limit" and rank == 1:
        n = len(os.listdir("/proc/self/fd")); resource.setrlimit(resource.RLIMIT_NOFILE, (n + 6, n + 6))
    mk = lambda n, e: DataLoader(Volumes(n, rank), 2, sampler=DistributedSampler(range(n), world, rank), num_workers=a.workers, drop_last=True,
                                 timeout=a.dl_timeout if a.workers else 0, multiprocessing_context=a.mp if a.workers else None,
                                 worker_init_fn=(lambda i: os._exit(7)) if a.fault == "worker_dies" and rank == 1 and e else None)
    tl, vl = mk(48, 0), mk(16, 1); g1, g2, d = Gen(), Gen(1), Disc()
    if a.prebroadcast:
        for m in (g1, g2, d):
            for p in m.parameters(): dist.broadcast(p.data, src=0)
    kw = dict(broadcast_buffers=a.fault == "rank0_sample_ddp", gradient_as_bucket_view=True, static_graph=bool(a.static_graph) and a.fault != "rank0_sample_ddp")
    g1, g2, d = (nn.parallel.DistributedDataParallel(m, **kw) for m in (g1, g2, d))
    og1, og2, od = (torch.optim.Adam(m.parameters(), 1e-4) for m in (g1, g2, d)); step = 0
    for epoch in range(a.epochs):
        t0 = time.time()
        for it, (c1, c2, c3, x) in enumerate(started(tl, rank)):
            dt = time.time() - t0; cond = (c1, c2, c3)
            if a.fault == "rank_raises" and epoch == 1 and it == 1 and rank == 1: raise ValueError("corrupt slice 17")
            req(d, True); req(g1, False); req(g2, False); od.zero_grad()
            t = torch.randint(0, T, (len(x),)); xtp1 = noise(x, t); xt = noise(x, (t - 1).clamp(0)).requires_grad_(True)
            loss = F.softplus(-d(xt, t, xtp1)).mean()
            if a.lazy_reg and step % a.lazy_reg == 0:
                dd = d if a.fault == "r1_through_ddp" or a.r1_ddp else d.module   # the fork calls autograd.grad through the DDP wrapper
                gr, = torch.autograd.grad(dd(xt, t, xtp1).sum(), xt, create_graph=True, retain_graph=bool(a.retain_graph))
                loss = loss + 0.025 * gr.flatten(1).norm(2, 1).pow(2).mean()
            with torch.no_grad():
                z = torch.randn(len(x), NZ); f1 = g1(xtp1, cond, t, z); f2 = g2(xtp1, cond, t, z, f1)
            loss = loss + F.softplus(d(noise(f1, t), t, xtp1)).mean() + F.softplus(d(noise(f2, t), t, xtp1)).mean()
            if a.fault == "nan_skip" and step == 3 and rank == 2: loss = loss * float("nan")
            if torch.isfinite(loss): loss.backward(); od.step()   # rank-local decision to skip a collective
            req(d, False); req(g1, True); req(g2, True); og1.zero_grad(); og2.zero_grad()
            t = torch.randint(0, T, (len(x),)); xtp1 = noise(x, t); z = torch.randn(len(x), NZ)
            f1 = g1(xtp1, cond, t, z); f2 = g2(xtp1, cond, t, z, f1)
            gl = F.softplus(-d(noise(f1, t), t, xtp1)).mean() + F.softplus(-d(noise(f2, t), t, xtp1)).mean() + 0.5 * (F.l1_loss(f1, x) + F.l1_loss(f2, x))
            gl.backward(); og1.step(); og2.step(); step += 1
            if it == 0: print(f"[rank {rank}] epoch {epoch} first batch after {dt:.2f}s", flush=True)
            t0 = time.time()
        if rank == 0:                                            # rank-0-only sampling and checkpoint
            with torch.no_grad(): (g1 if a.fault != "rank0_sample_ddp" else d)(*((xtp1, cond, t, z) if a.fault != "rank0_sample_ddp" else (x, t, xtp1)))
            torch.save({"g1": g1.state_dict(), "step": step}, "w1_content.pt")
        for c1, c2, c3, x in vl:                                 # all ranks, no collectives
            with torch.no_grad(): g1.module(noise(x, torch.zeros(len(x), dtype=torch.long)), (c1, c2, c3), torch.zeros(len(x), dtype=torch.long), torch.zeros(len(x), NZ))

    sums = [None] * world; dist.all_gather_object(sums, [round(float(sum(p.double().abs().sum() for p in m.parameters())), 6) for m in (g1, g2, d)])
    if rank == 0: print("PARAMS", "IN SYNC" if len({tuple(x) for x in sums}) == 1 else f"DIVERGED {sums}", flush=True)

def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=a.pg_timeout), rank=rank, world_size=world); ok = False
    try:
        train(rank, world); ok = True; dist.barrier()
        if rank == 0: print("W1 DONE", flush=True)
    finally:
        if not ok: time.sleep(2)                                 # "give other ranks time to detect the error"
        dist.destroy_process_group()
if __name__ == "__main__": main()