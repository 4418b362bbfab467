"""W3: re-identification. DDP backbone with BatchNorm buffers (broadcast in training and the first eval forward), an optional mask head, a memory
bank whose forward all_gathers features and indexes, identity sampling with a fixed iteration count per epoch. Per epoch: train,
barrier, feature extraction on every rank, barrier, all_gather of features, rank-0 ranking and save, barrier. At the end: reload best, test."""
import argparse, os, time, datetime, random, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
ap = argparse.ArgumentParser()
ap.add_argument("--fault", default="none"); ap.add_argument("--epochs", type=int, default=2); ap.add_argument("--iters", type=int, default=6)
ap.add_argument("--pg-timeout", type=float, default=8); ap.add_argument("--find-unused", type=int, default=0); ap.add_argument("--fault-iter", type=int, default=3)
ap.add_argument("--mitigate", default="none", choices=["none", "swallow", "barrier_in_except"]); ap.add_argument("--work", default="w3_runs")
a = ap.parse_args(); NID, PER, D, BS = 24, 6, 64, 8
def sync():
    if dist.is_initialized() and dist.get_world_size() > 1: dist.barrier()
def all_gather_tensor(x):
    out = [torch.empty_like(x) for _ in range(dist.get_world_size())]; dist.all_gather(out, x); return torch.cat(out)

class MemoryFn(torch.autograd.Function):                          # gathers in forward, momentum update in backward
    @staticmethod
    def forward(ctx, x, idx, bank, m):
        ctx.bank, ctx.m = bank, m; ctx.save_for_backward(all_gather_tensor(x.detach()), all_gather_tensor(idx)); return x @ bank.t()
    @staticmethod
    def backward(ctx, g):
        xs, ids = ctx.saved_tensors; gx = g @ ctx.bank
        for x, i in zip(xs, ids): ctx.bank[i] = F.normalize(ctx.m * ctx.bank[i] + (1 - ctx.m) * x, dim=0)
        return gx, None, None, None

class ReID(nn.Module):
    def __init__(s):
        super().__init__(); c = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU())
        s.body = nn.Sequential(c(3, 16), c(16, 32)); s.fc = nn.Linear(32, D); s.bnneck = nn.BatchNorm1d(D); s.cls = nn.Linear(D, NID, bias=False)
        s.mask = nn.Sequential(nn.Conv2d(32, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1))
    def forward(s, x, with_mask=True):
        h = s.body(x); f = s.bnneck(s.fc(h.mean((2, 3))))
        if not s.training: return F.normalize(f, dim=1)
        return dict(feat=f, prob=s.cls(f), mask=torch.sigmoid(s.mask(h)) if with_mask else None)

class Runner:
    def __init__(s, rank, world):
        s.rank, s.world = rank, world; torch.manual_seed(1); s.net = nn.parallel.DistributedDataParallel(ReID(), find_unused_parameters=bool(a.find_unused))
        s.opt = torch.optim.Adam(s.net.parameters(), 5e-4); s.bank = F.normalize(torch.randn(NID, D), dim=1); s.best = 0.0
        g = torch.Generator().manual_seed(3); s.proto = torch.randn(NID, 3, 16, 16, generator=g); s.g = torch.Generator().manual_seed(10 + rank)
        stamp = "run" if a.fault != "rank_workdir" else f"run_{int(time.time()*1000)}_{rank}"     # work dir from a per-rank clock
        s.dir = os.path.join(a.work, stamp); os.makedirs(s.dir, exist_ok=True); s.ck = os.path.join(s.dir, "best.pt")
        if rank == 0 and os.path.exists(s.ck): os.remove(s.ck)
    def batch(s):
        ids = torch.randint(0, NID, (BS // 2,), generator=s.g).repeat_interleave(2); return s.proto[ids] + torch.randn(BS, 3, 16, 16, generator=s.g), ids
    def step(s, ep, it):
        x, ids = s.batch(); bad = ep == 0 and it == a.fault_iter
        if a.fault == "bad_batch" and bad and s.rank == 1: x = x[:, :, :3, :1].expand(-1, 2, -1, -1)   # corrupt image: wrong channels
        r = s.net(x, with_mask=not (a.fault == "unused_mask" and bad and s.rank == 2))              # no boxes in this rank's batch
        f = F.normalize(r["feat"], dim=1); loss = F.cross_entropy(r["prob"], ids) + F.cross_entropy(MemoryFn.apply(f, ids, s.bank, 0.2) / 0.05, ids)
        d = torch.cdist(f, f); same = ids[:, None] == ids[None]; loss = loss + F.relu((d * same).max(1)[0] - (d + 10 * same).min(1)[0] + 0.3).mean()
        if r["mask"] is not None: loss = loss + 0.05 * r["mask"].mean()
        if a.fault == "nan_loss" and bad and s.rank == 1: loss = loss * float("nan")
        return loss
    def train(s, ep):
        s.net.train()
        for it in range(a.iters):
            if a.mitigate == "swallow":                             # "return a dummy loss to prevent training crash"
                try: loss = s.step(ep, it)
                except Exception as e: print(f"Error in train_step iteration {it}: {e}"[:120], flush=True); loss = torch.tensor(0.0, requires_grad=True)
            else: loss = s.step(ep, it)
            if loss > 0: s.opt.zero_grad(); loss.backward(); s.opt.step()      # data-dependent: NaN > 0 and 0 > 0 are False
    def extract(s, n=40):
        s.net.eval(); feats = []; per = -(-n // s.world)
        mine = list(range(s.rank * per, min((s.rank + 1) * per, n if a.fault != "uneven_feats" else n - 3)))
        with torch.no_grad():
            for k in range(0, per, 5): feats.append(s.net(s.proto[[i % NID for i in mine[k:k + 5] or [0]]]))
        sync(); f = torch.cat(feats)[:len(mine)] if a.fault == "uneven_feats" else torch.cat(feats); return all_gather_tensor(f)[:n]
    def val(s, ep):
        f = s.extract()
        if s.rank == 0:
            if a.fault == "slow_rank0_eval" and ep == 0: time.sleep(a.pg_timeout + 4)
            m = float((torch.cdist(f, f) + 9 * torch.eye(len(f))).min(1)[0].mean())
            if a.fault == "rank0_extra_forward": s.net.eval(); s.net(s.proto[:4])             # a preview through the DDP wrapper on rank 0
            if m > s.best: s.best = m; torch.save(s.net.state_dict(), s.ck)
    def run(s):
        for ep in range(a.epochs): s.train(ep); sync(); s.val(ep); sync()
        if os.path.isfile(s.ck): s.net.load_state_dict(torch.load(s.ck)); sync()               # collective behind a per-rank file test
        f = s.extract(); sums = [None] * s.world; dist.all_gather_object(sums, round(float(sum(p.double().abs().sum() for p in s.net.parameters())), 6))
        if s.rank == 0: print("PARAMS", "IN SYNC" if len(set(sums)) == 1 else f"DIVERGED {sums}", flush=True); print("W3 DONE", flush=True)

def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=a.pg_timeout)); r = Runner(dist.get_rank(), dist.get_world_size())
    try: sync(); r.run(); sync()
    except Exception as e:
        if a.mitigate == "barrier_in_except": print(f"[rank {r.rank}] {time.time():.1f} Error during training: {e}"[:160], flush=True); sync()   # "make all processes aware"
        raise
    del r; dist.destroy_process_group()                             # free DDP before the group
if __name__ == "__main__": main()
