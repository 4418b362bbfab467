"""Small programs with a fault, as a finding names it, and what the diff makes of them; empty where there must be none."""

from __future__ import annotations

from dataclasses import dataclass, field

from unhang.model import EvidenceLine, Finding, Fix, Gate, Location

HEAD = "import torch\nimport torch.distributed as dist\n\n\n"


@dataclass(frozen=True)
class Wrong:
    """A program whose line with `# here` is at fault. `gate`: the text of the condition that decides; it stands in the line with `# gate`."""

    source: str
    mended: str  # the lines that the diff adds, or a part of the reason why there is none
    cause: str = "code-divergence"
    rule: str = "rank-dependent-collective"
    gate: str = ""
    by_rank: bool = True
    op: str = "all_reduce"
    group: str = "default_pg"
    evidence: tuple[EvidenceLine, ...] = field(default=())
    does: str = ""  # of the fix that the report gives first

    def finding(self, file: str) -> Finding:
        lines = self.text.splitlines()
        at = next(i for i, line in enumerate(lines, 1) if "# here" in line)
        gate_at = next((i for i, line in enumerate(lines, 1) if "# gate" in line), at)
        gate = Gate(file, gate_at, self.gate, self.by_rank, self.by_rank) if self.gate else None
        evidence = tuple(
            EvidenceLine(e.source, e.text, next((i for i, line in enumerate(lines, 1) if e.text in line), e.line))
            for e in self.evidence
        )
        return Finding(
            self.rule, self.cause, "rank 0 did another thing", 0.9, (0,), "Because.", (1,), {"pg_name": "9", "pg_desc": self.group},
            {"op": self.op, "seq": 4}, Location(file, at, "work"), evidence, condition=gate,
            fixes=(Fix("As it says", does=self.does, verify="It runs.", undo="Undo it."),) if self.does else (),
        )  # fmt: skip

    @property
    def text(self) -> str:
        return HEAD + self.source


RANK = "dist.get_rank() == 0"
LOOP = EvidenceLine("loop", "for batch")
_STEPS = "def work(net, batches, opt):\n    for x in batches:\n        loss = net(x)\n        if %s:  # gate\n            %s  # here\n        loss.backward()\n        opt.step()\n"
_MODULE = (
    "class Codes(torch.nn.Module):\n    def __init__(self):\n        self.register_buffer('idle', torch.zeros(8))\n\n"
    "    def renew(self, x):\n        old = %s > 9\n        if old.any():  # gate\n            dist.broadcast(x, 0)  # here\n"
)
_NEARS = "def work(xs, t, most):\n    while %s:  # here\n        dist.all_reduce(xs)\n        t += float(xs.max())\n"
_SCORED = "def work(net, best, data):\n    score = look(net, data)\n    if %s:  # gate\n        dist.broadcast(net.weight, 0)  # here\n"
_PATIENCE = (
    "def work(net, patience, data, xs):\n    for x in xs:\n        dist.all_reduce(x)\n        loss = look(net, data)\n"
    "        if patience.over(loss):  # here\n            break\n"
)
_MEANS = "def work(acc, kept, rows):\n    part = rows[kept]\n    if len(part) > 0:  # gate\n        return %s  # here\n"
HANDLER = EvidenceLine("rank 1 handler", "except ValueError")

WAY_OUT = EvidenceLine("way out", "if slow()")
FIRST = EvidenceLine("first round", "first = read")
ROUNDS = (EvidenceLine("loop", "for name"), EvidenceLine("rounds", "if odd()"))
_COLLECTS = "def work(xs):\n    have = 0\n    for x in xs:\n        dist.all_reduce(x)\n        have += %s\n        if have >= want:  # here\n            break\n"
_LEAVES_LOOP = (
    "def work(xs):\n    for x in xs:\n        dist.all_reduce(x)\n        if slow():  # here\n            break\n"
)
_GROUPS = "def work(x, groups, order):\n    for name in order:\n        dist.all_reduce(x, group=%s)  # here\n"
_SETS = "def work(store, best, loss):\n    if loss < best:\n        best = loss\n        store.set('best', %s)  # here\n    return best\n"

_BUDGET = (
    "def work(xs):\n    for x in xs:\n        last = full(x)\n        if last:  # gate\n            dist.all_reduce(x)  # here\n"
    "        %s\n"
)
_BAR = (
    "def work(xs, quiet):\n    bar = tqdm(xs, %s)\n    for x in xs:\n        bar.update(1)\n        if bar.n %% 9 == 0:  # gate\n"
    "            dist.all_reduce(x)  # here\n"
)
_RING = "def work(a, b, left, right):\n    dist.send(b, right)  # here\n    dist.recv(a, left)\n"
_HANDLER = (
    "import signal\n\n\ndef save(number, frame):\n    dist.barrier()  # here\n\n\ndef main(xs):\n    signal.signal(signal.SIGUSR1, save)\n"
    "    for x in xs:\n        dist.all_reduce(x)\n"
)
_IN_HANDLER = (
    EvidenceLine("rank 1 stack", "train.py:15 in main", 15),
    EvidenceLine("rank 1 signal", "it is in the handler of SIGUSR1"),
)

_GIVES = "def work(mine, parts):\n    if %s:  # gate\n        return\n    flat = torch.cat([p.view(-1) for p in mine])\n    dist.all_gather(parts, flat)  # here\n"
_SMALL = "def work(x, floor):\n    if %s:  # gate\n        return\n    dist.all_reduce(x)  # here\n"
_GRADIENTS = "def work(ps, team):\n    for p in ps:  # here\n        if p.grad is not None:\n            dist.all_reduce(p.grad, group=team)\n"
_SKIPS = (
    "def work(xs):\n    for x in xs:\n        try:\n            y = read(x)\n        except ValueError:\n            print('bad')\n            continue\n"
    "        dist.all_reduce(y)  # here\n"
)
_RINGS = "def work(x, hops):\n    for hop in range(hops + 1):  # here\n        x = rotate(x)\n"
_IRECV = EvidenceLine("rank 0 waits", "for rank 1 in irecv from rank 1")
_SPLIT = "def work(acc, items):\n    with acc.split_between_processes(items) as mine:\n        for x in mine:  # here\n            acc.gather(x)\n"
_ROOT = "def work(x, best):\n    leader = best.index(min(best))\n    dist.broadcast(x, src=%s)  # here\n"

_SHARED_OUT = (
    "def work(rank, world, n, parts):\n    found = []\n    for i in range(rank, n, world):  # here\n        dist.all_gather(parts, look(i))\n"
    "        found += parts\n    return torch.cat(found)%s\n"
)
_LEAVES_OUT = (
    "def work(acc, net, data):\n    with %s(accelerator=acc, model=net) as counts:\n        for x in data:  # here\n            if x.numel() > 9:\n"
    "                continue\n            net(x).backward()\n            counts.step()\n"
)
_LAST = (
    "class Steps:\n    def parts(self):\n        seen = 0\n        while seen < self.most:\n            x = next(self.data)\n            seen += x.numel()\n"
    "            yield x, %s\n\n    def work(self):\n        for x, last in self.parts():\n            self.net.set_requires_gradient_sync(last)  # here\n"
)
_TOLD = (
    "def work(net, opt, stop, plan, data, xs):\n    for x in xs:\n        dist.all_reduce(x)\n        loss, hits = look(net, data)\n        %s\n"
    "        if %s:  # here\n            break\n"
)
_TWO = f"def work(xs, ys):\n    if {RANK}:  # gate\n        xs = all_gather(xs)  # here\n"
_ROUNDS = ("uneven-inputs", "uneven-inputs")
_AT_THE_STEP = EvidenceLine("rank 1 calls", "#9 barrier() from <module>:20 > work:11")
_SENDS_LIST = (
    "def gather(items):\n    out = [None, None]\n    dist.%s\n    return out\n\n\ndef work(mine):\n    if len(mine) == 0:  # here\n        return {}\n"
    "    parts = gather(mine)\n    return {p: 1 for part in parts for p in part}\n"
)
_CAME = EvidenceLine("rank 0 source", "work (train.py:14): parts = gather(mine)", 14)

MENDED = {
    "a score that an object is told": Wrong(
        _TOLD % ("stop(loss, net)", "stop.now"), "        loss = mean_of_ranks(loss)\n", rule="uneven-inputs", evidence=(EvidenceLine("way out", "if stop.now"),),
    ),
    "a score that the schedule is told": Wrong(
        _TOLD % ("plan.step(loss)\n        rate = opt.param_groups[0]['lr']", "rate < 1e-6"), "        loss = mean_of_ranks(loss)\n", rule="uneven-inputs",
        evidence=(EvidenceLine("way out", "if rate < 1e-6"),),
    ),
    "a score that another object is told": Wrong(
        _TOLD % ("log(loss)", "stop.now"), "        if any_rank(stop.now):  # here\n", rule="uneven-inputs", evidence=(EvidenceLine("way out", "if stop.now"),),
    ),
    "two results that one rank gathers": Wrong(
        _TWO + "        ys = all_gather(ys)\n        print(xs, ys)\n",
        "    xs = all_gather(xs)  # here\n    ys = all_gather(ys)\n", gate=RANK,
    ),
    "a loop that the rank shares out": Wrong(
        _SHARED_OUT % "[:n]", "    for i in (min(i, n - 1) for i in range(rank, -(-n // world) * world, world)):  # here\n", *_ROUNDS,
        evidence=(EvidenceLine("loop", "for i in"),),
    ),
    "a loop that the rank shares out, with all that is gathered": Wrong(
        _SHARED_OUT % "", "    for i in in_step(range(rank, n, world)):  # here\n", *_ROUNDS, evidence=(EvidenceLine("loop", "for i in"),)
    ),
    "a round that is left out is counted": Wrong(
        _LEAVES_OUT % "LocalSGD", "                counts.step()  # counts on every rank\n", *_ROUNDS, evidence=(EvidenceLine("loop", "for x in"), _AT_THE_STEP)
    ),
    "a round that is left out by all": Wrong(
        _LEAVES_OUT % "Averages", "            if any_rank(x.numel() > 9):\n", *_ROUNDS, evidence=(EvidenceLine("loop", "for x in"), _AT_THE_STEP)
    ),
    "a round that a generator says is the last": Wrong(
        _LAST % "seen >= self.most", "        while any_rank(seen < self.most):\n            yield x, agreed(seen >= self.most)\n", gate="last", by_rank=False
    ),
    "a list of which a rank may have nothing is sent as an object": Wrong(
        _SENDS_LIST % "gather_object(items, out)", "    if agreed(len(mine) == 0):  # here\n", gate="len(mine) != 0", by_rank=False, evidence=(_CAME,)
    ),
    "a step whose loss is no number ends a rank": Wrong(
        _STEPS % ("not torch.isfinite(loss)", "sys.exit(1)"), "            continue  # no rank trains on this step  # here\n",
        "rank-exited-early", "rank-exited-early", gate="not torch.isfinite(loss)", by_rank=False, does="decide together",
    ),
    "a step whose loss is no number raises": Wrong(
        _STEPS % ("loss != loss", "raise ValueError('nan')"), "        if any_rank(loss != loss):  # gate\n            continue  # no rank trains on this step  # here\n",
        "user-exception", "user-exception", gate="loss != loss", by_rank=False,
    ),
    "a mask of what a module keeps": Wrong(_MODULE % "self.idle", "        old = on_all_ranks(self.idle > 9)\n", gate="old.any()", by_rank=False),
    "a mask of where a rank has something": Wrong(
        (_MODULE % "self.idle").replace("> 9", "> 0"), "        if agreed(old.any()):  # gate\n", gate="old.any()", by_rank=False
    ),
    "a mask of a batch is agreed on as a whole": Wrong(_MODULE % "x", "        if agreed(old.any()):  # gate\n", gate="old.any()", by_rank=False),
    "a score of each rank's own": Wrong(_SCORED % "score < best.low", "    score = mean_of_ranks(look(net, data))\n", gate="score < best.low", by_rank=False),
    "a score that is given to what decides": Wrong(
        _SCORED % "best.worse(score)", "    score = mean_of_ranks(look(net, data))\n", gate="best.worse(score)", by_rank=False
    ),
    "a score that all have already": Wrong(
        "def shared(x):\n    dist.all_reduce(x)\n    return x\n\n\n" + (_SCORED % "best.worse(score)").replace("    if", "    shown = shared(score)\n    if"),
        "    if best.worse(shown):  # gate\n", gate="best.worse(score)", by_rank=False,
    ),
    "a score that comes from all ranks": Wrong(
        (_SCORED % "score < best.low").replace("look(", "dist.all_reduce("), "    if agreed(score < best.low):  # gate\n", gate="score < best.low", by_rank=False
    ),
    "what is no score": Wrong((_SCORED % "room < best.low").replace("score", "room"), "    if agreed(room < best.low):  # gate\n", gate="room < best.low", by_rank=False),
    "patience with a score of each rank's own": Wrong(
        _PATIENCE,
        "        loss = mean_of_ranks(look(net, data))\n", rule="uneven-inputs", evidence=(EvidenceLine("way out", "if patience"),),
    ),
    "a mean of those ranks that have some": Wrong(
        _MEANS % "acc.gather(part.mean()).mean()", "    if any_rank(len(part) > 0):  # gate\n        return acc.gather(part.mean()).nanmean()  # here\n",
        gate="len(part) > 0", by_rank=False,
    ),

    "items that are all empty": Wrong(
        "def work(acc, targets):\n    if all(len(t) == 0 for t in targets):  # gate\n        return acc.background()\n    count = torch.tensor(sum(len(t) for t in targets))\n"
        "    dist.all_reduce(count)  # here\n    return acc.losses(targets, count)\n",
        "    if agreed(all(len(t) == 0 for t in targets)):", gate="not all(len(t) == 0 for t in targets)", by_rank=False,
    ),
    "an exchange to which a rank has nothing to give": Wrong(
        _GIVES % "not mine", "    if agreed(not mine):  # gate\n", gate="mine", by_rank=False, op="all_gather",
    ),
    "what has nothing to give is joined all the same": Wrong(
        _GIVES % "len(mine) == 0", "    flat = (torch.cat([p.view(-1) for p in mine]) if len(mine) else torch.zeros(0))\n", gate="len(mine) != 0", by_rank=False,
    ),
    "an exchange of what is too small": Wrong(
        _SMALL % "x.max() < floor", "    if agreed(x.max() < floor):  # gate\n", gate="not x.max() < floor", by_rank=False
    ),
    "an exchange that each rank draws for": Wrong(
        _SMALL % "rng.random() < floor", "    if from_first_rank(rng.random() < floor):  # gate\n", gate="rng.random() < floor", by_rank=False
    ),
    "room for as many as one rank has": Wrong(
        "def work(rows, most):\n    if most < len(rows):  # gate\n        return\n    rows = cat(rows, torch.zeros(most - len(rows), 4))\n    dist.all_reduce(rows)  # here\n",
        "    most = most_of_all(most)\n", gate="not most < len(rows)", by_rank=False,
    ),
    "a loop that nears its end": Wrong(
        _NEARS % "t < 1.0 - 1e-6", "    while any_rank(t < 1.0 - 1e-6):  # here\n", rule="uneven-inputs", evidence=(EvidenceLine("way out", "while t"),)
    ),
    "a loop with so many rounds": Wrong(
        _NEARS % "t < most", "    while agreed(t < most):  # here\n", rule="uneven-inputs", evidence=(EvidenceLine("way out", "while t"),)
    ),
    "an exchange of what is bad": Wrong(
        _SMALL % "not torch.isfinite(x)", "    if any_rank(not torch.isfinite(x)):  # gate\n", gate="torch.isfinite(x)", by_rank=False
    ),
    "a parameter without a gradient in a loop": Wrong(
        _GRADIENTS, "        if any_rank(p.grad is not None, team):\n            if p.grad is None:\n                p.grad = torch.zeros_like(p)\n",
        "uneven-inputs", "uneven-inputs", group="team", evidence=(EvidenceLine("loop", "for p in"),),
    ),
    "a parameter without a gradient that is passed over": Wrong(
        "def work(p):\n    if p.grad is None:  # gate\n        return\n    dist.all_reduce(p.grad)  # here\n",
        "    if agreed(p.grad is None):  # gate\n    if p.grad is None:\n        p.grad = torch.zeros_like(p)\n", gate="p.grad is not None", by_rank=False,
    ),
    "a value by which a library goes": Wrong(
        "def work(model, tokens):\n    keep = tokens < 9  # gate\n    model.set_reshard_after_forward(not keep)  # here\n",
        "    keep = agreed(tokens < 9)  # gate\n", gate="tokens < 9", by_rank=False,
    ),
    "a line that asks a framework": Wrong(
        "def on_step_end(args, state, control, loss):\n    if loss > 9:  # gate\n        control.should_log = True  # here\n",
        "    if any_rank(loss > 9):  # gate\n", gate="loss > 9", by_rank=False,
    ),
    "a check that one rank alone does not pass": Wrong(
        "def work(x):\n    if len(x) < 2:  # gate\n        raise ValueError  # here\n    dist.all_reduce(x)\n", "    if any_rank(len(x) < 2):  # gate\n",
        rule="swallowed-exception", gate="len(x) < 2", by_rank=False,
    ),
    "a round that one rank cannot make": Wrong(
        _SKIPS, "        failed = False\n            failed = True\n        if any_rank(failed):\n", rule="swallowed-exception", evidence=(HANDLER,), does="skip together",
    ),
    "transfers that one rank needs no longer": Wrong(
        _RINGS, "    hops = most_of_all(hops)\n", "uneven-inputs", "uneven-inputs", evidence=(EvidenceLine("loop", "for hop"), _IRECV), op="",
    ),
    "items that do not come out even": Wrong(
        _SPLIT, "    with acc.split_between_processes(items, apply_padding=True) as mine:\n", "uneven-inputs", "uneven-inputs",
        evidence=(EvidenceLine("loop", "for x in"),),
    ),
    "keys that a rank has not": Wrong(
        "def work(sums):\n    for name, x in sorted(sums.items()):  # here\n        dist.all_reduce(x)\n",
        "    for name, x in sorted(of_all_ranks(sums).items()):  # here\n", "uneven-inputs", "uneven-inputs", evidence=(EvidenceLine("loop", "for name"),),
    ),
    "keys that are looked up": Wrong(
        "def work(sums, team):\n    for name in sorted(sums):  # here\n        dist.all_reduce(sums[name], group=team)\n",
        "    sums = of_all_ranks(sums, team)\n", "uneven-inputs", "uneven-inputs", group="team", evidence=(EvidenceLine("loop", "for name"),),
    ),
    "a save that one rank wants": Wrong(
        "def work(model, score):\n    if score.improved():  # gate\n        save(model)  # here\n", "    if any_rank(score.improved()):  # gate\n",
        gate="score.improved()", by_rank=False,
    ),
    "a save that one rank passes over": Wrong(
        "def work(model, score):\n    if score.stale():  # gate\n        return\n    save(model)  # here\n", "    if agreed(score.stale()):  # gate\n",
        gate="not score.stale()", by_rank=False,
    ),
    "a save behind a step that one rank can make": Wrong(
        "def work(model, x):\n    if x.sum() > 0:  # gate\n        step(model, x)  # here\n        save(model)\n", "    if agreed(x.sum() > 0):  # gate\n",
        gate="x.sum() > 0", by_rank=False,
    ),
    "a root that each rank finds": Wrong(_ROOT % "leader", "    leader = from_first_rank(best.index(min(best)))\n", rule="roots-disagree", op="broadcast"),
    "a root that each rank finds in the call": Wrong(
        _ROOT % "best.index(1)", "    dist.broadcast(x, src=from_first_rank(best.index(1)))  # here\n", rule="roots-disagree", op="broadcast"
    ),
    "a loop that is left by a test": Wrong(
        _LEAVES_LOOP, "        if any_rank(slow()):  # here\n", rule="uneven-inputs", evidence=(WAY_OUT,)
    ),
    "a call that a round without items leaves out": Wrong(
        "def work(prof, xs):\n    for x in xs:\n        if kept == 0:  # gate\n            continue\n        log(x)\n        prof.step()  # here\n",
        "        prof.step()\n", gate="not kept == 0", by_rank=False,
    ),
    "a loop that collects until it has enough": Wrong(
        _COLLECTS % "len(x)", "        if agreed(have >= want):  # here\n", rule="uneven-inputs", evidence=(EvidenceLine("way out", "if have"),)
    ),
    "a loop with a patience": Wrong(
        _COLLECTS % "1", "        if any_rank(have >= want):  # here\n", rule="uneven-inputs", evidence=(EvidenceLine("way out", "if have"),)
    ),
    "a loop that is left when all that a rank has is done": Wrong(
        _LEAVES_LOOP.replace("slow()", "done.all()"), "        if agreed(done.all()):  # here\n", rule="uneven-inputs",
        evidence=(EvidenceLine("way out", "if done"),),
    ),
    "a loop that is left when not all is well": Wrong(
        _LEAVES_LOOP.replace("slow()", "not fine.all()"), "        if any_rank(not fine.all()):  # here\n", rule="uneven-inputs",
        evidence=(EvidenceLine("way out", "if not fine"),),
    ),
    "a loop that ends by its head": Wrong(
        "def work(x):\n    while not done(x):  # here\n        dist.all_reduce(x)\n", "    while agreed(not done(x)):  # here\n",
        rule="uneven-inputs", evidence=(EvidenceLine("way out", "while not"),),
    ),
    "a loop that begins elsewhere": Wrong(
        "def work(x):\n    first = read()  # here\n    for _ in range(first, 9):\n        dist.all_reduce(x)\n",
        "    first = from_first_rank(read())  # here\n", rule="uneven-inputs", evidence=(FIRST,),
    ),
    "a list that one rank shortened": Wrong(
        "def work(names, x):\n    if odd():  # here\n        names.pop()\n    for name in names:\n        dist.all_reduce(x)\n",
        "    for name in from_first_rank(names):\n", rule="uneven-inputs", evidence=ROUNDS,
    ),
    "a number of rounds that one rank changed": Wrong(
        "def work(n, x):\n    if odd():  # here\n        n += 1\n    for name in range(n):\n        dist.all_reduce(x)\n",
        "    for name in range(from_first_rank(n)):\n", rule="uneven-inputs", evidence=ROUNDS,
    ),
    "a number of rounds that rank 2 changed": Wrong(
        "def work(n, x):\n    if odd():  # here\n        n += 1\n    for name in range(n):\n        dist.all_reduce(x)\n",
        "    for name in range(from_rank_2(n)):\n", rule="uneven-inputs",
        evidence=(*ROUNDS, EvidenceLine("rank 2 rounds", "n has changed there")),
    ),
    "a variable that decides twice": Wrong(
        _BUDGET % "x = step(last)", "        last = agreed(full(x))\n", gate="last", by_rank=False
    ),
    "a variable that decides once": Wrong(_BUDGET % "pass", "        if agreed(last):  # gate\n", gate="last", by_rank=False),
    "an exchange of what a rank may have none of": Wrong(
        "def work(parts):\n    mine = [p for p in parts if p.mine]\n    count = sum(p.size for p in mine)\n    if count > 0:  # gate\n"
        "        x = torch.cat([p.data for p in mine])\n        dist.all_reduce(x)  # here\n",
        "    if any_rank(count > 0):  # gate\n", gate="count > 0", by_rank=False,
    ),
    "a loop that nothing but its data ends": Wrong(
        "def work(xs):\n    for x in xs:  # here\n        dist.all_reduce(x)\n", "    for x in in_step(xs):  # here\n", rule="uneven-inputs",
        evidence=(EvidenceLine("loop", "for x in"),),
    ),
    "a loop that only looks at its data": Wrong(
        "@torch.no_grad()\ndef extract(xs):\n    for x in xs:  # here\n        dist.all_gather(parts, net(x))\n", "    for x in in_full(xs):  # here\n", rule="uneven-inputs",
        evidence=(EvidenceLine("loop", "for x in"),),
    ),
    "a loop that looks at its data in a block": Wrong(
        "def validate(xs):\n    with torch.inference_mode():\n        for x in xs:  # here\n            dist.all_reduce(net(x))\n",
        "        for x in in_full(xs):  # here\n", rule="uneven-inputs",
        evidence=(EvidenceLine("loop", "for x in"),),
    ),
    "a loop that trains in a function of that name": Wrong(
        "def validate_and_train(xs):\n    for x in xs:  # here\n        net(x).backward()\n", "    for x in in_step(xs):  # here\n", rule="uneven-inputs",
        evidence=(EvidenceLine("loop", "for x in"),),
    ),
    "a progress bar that counts on one rank": Wrong(
        _BAR % "disable=quiet", "        if any_rank(bar.n % 9 == 0):  # gate\n", gate="bar.n % 9 == 0", by_rank=False
    ),
    "a progress bar that one rank alone shows": Wrong(
        _BAR.replace("bar.n %% 9 == 0", "not bar.disable") % "disable=quiet", "        if any_rank(not bar.disable):  # gate\n", gate="not bar.disable", by_rank=False
    ),
    "a progress bar that counts on every rank": Wrong(
        _BAR % "disable=True", "        if agreed(bar.n % 9 == 0):  # gate\n", gate="bar.n % 9 == 0", by_rank=False
    ),
    "groups in the order of a list of names": Wrong(
        _GROUPS % "groups[name]", "    for name in from_first_rank(order):\n", "collective-order-race", "collective-order-race"
    ),
    "a key set under a condition": Wrong(
        _SETS % "str(loss)", "    store.set('best', str(loss))  # here\n", rule="waits-for-store"
    ),
    "a key set by one rank under a condition": Wrong(
        "def work(store, step):\n    if dist.get_rank() == 0 and step != 5:\n        store.set('ready', '1')  # here\n",
        "    if dist.get_rank() == 0:\n", rule="waits-for-store",
    ),
    "a result in an f-string": Wrong(
        "def work(x):\n    if dist.get_rank() == 0:  # gate\n        print(f'loss {mean(x):.3f}')  # here\n\n\ndef mean(x):\n    dist.all_reduce(x)\n    return x\n",
        "    mean_result = mean(x)  # on every rank: it leads to a collective call\n        print(f'loss {mean_result:.3f}')  # here\n",
        gate=RANK,
    ),
    "a result that nobody uses": Wrong(
        "def work(x):\n    if dist.get_rank() == 0:  # gate\n        print('saving')\n        dist.barrier()  # here\n",
        "    dist.barrier()  # here\n", gate=RANK, op="barrier",
    ),
    "nothing else under the condition": Wrong(
        "def work(x):\n    if dist.get_rank() == 0:  # gate\n        dist.barrier()  # here\n    return x\n", "    dist.barrier()  # here\n", gate=RANK, op="barrier",
    ),
    "with what the call needs": Wrong(
        "def work(x):\n    if dist.get_rank() == 0:  # gate\n        y = x * 2\n        print('now')\n        dist.all_reduce(y)  # here\n        print(y)\n",
        "    y = x * 2\n    dist.all_reduce(y)  # here\n", gate=RANK,
    ),
    "behind a way out": Wrong(
        "def work(x):\n    if dist.get_rank() != 0:  # gate\n        return\n    dist.all_reduce(x)  # here\n    print(x)\n",
        "    dist.all_reduce(x)  # here\n", gate=RANK,
    ),
    "under a second condition that all ranks share": Wrong(
        "def work(x, step):\n    if dist.get_rank() == 0:  # gate\n        print(step)\n        if step % 10 == 0:\n            dist.all_reduce(x)  # here\n",
        "    if step % 10 == 0:\n        dist.all_reduce(x)  # here\n", gate=RANK,
    ),
    "a condition with a part on the rank": Wrong(
        "def work(x, step):\n    if step % 10 == 0 and dist.get_rank() == 0:  # gate\n        dist.all_reduce(x)  # here\n",
        "    if step % 10 == 0:\n", gate=f"step % 10 == 0 and {RANK}",
    ),
    "a decision by data": Wrong(
        "def work(loss):\n    if torch.isfinite(loss):  # gate\n        loss.backward()  # here\n",
        '''\
def agreed(holds):
    """Whether it holds on every rank: all of them go the same way."""
    flag = torch.tensor(float(bool(holds)))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return flag.item() > 0


    if agreed(torch.isfinite(loss)):  # gate
''', gate="torch.isfinite(loss)", by_rank=False,
    ),
    "an early way out by data": Wrong(
        "def work(losses):\n    for loss in losses:\n        if loss != loss:  # gate\n            continue\n        loss.backward()  # here\n",
        "        if any_rank(loss != loss):  # gate\n", gate="loss == loss", by_rank=False,
    ),
    "a loop of unequal length": Wrong(
        "def work(batches):\n    for batch in batches:  # here\n        dist.all_reduce(batch)\n",
        "    for batch in in_step(batches):  # here\n", "uneven-inputs", "uneven-inputs", evidence=(LOOP,),
    ),
    "a loop in a group": Wrong(
        "def work(batches, team):\n    for batch in batches:  # here\n        dist.all_reduce(batch, group=team)\n",
        "    for batch in in_step(batches, team):  # here\n", "uneven-inputs", "uneven-inputs", group="team", evidence=(LOOP,),
    ),
    "an exception that is caught": Wrong(
        "def work(x):\n    for _ in range(3):\n        try:\n            dist.all_reduce(x)  # here\n        except ValueError:\n            continue\n",
        "            raise\n", rule="swallowed-exception", evidence=(HANDLER,),
    ),
    "parameters that take no part": Wrong(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef work(model, x):\n    model = DDP(model)\n    model(x)  # here\n",
        "    model = DDP(model, find_unused_parameters=True)\n", "unused-parameters", "unused-parameters",
    ),
    "receive before send": Wrong(
        "def work(a, b, left, right):\n    dist.recv(a, src=left)  # here\n    dist.send(b, dst=right)\n",
        "    sent = dist.isend(b, dst=right)\n    sent.wait()\n", "collective-order-race", "collective-order-race", op="recv",
    ),
    "send before receive, with one peer": Wrong(
        "def work(a, b, right):\n    dist.send(b, right)  # here\n    dist.recv(a, right)\n",
        "    sent = dist.isend(b, right)  # here\n    sent.wait()\n", "collective-order-race", "collective-order-race", op="send",
    ),
    "send before receive, all ranks alike": Wrong(
        _RING, "    sent = dist.isend(b, right)  # here\n    sent.wait()\n", "collective-order-race", "collective-order-race", op="send",
        evidence=(*(EvidenceLine(f"rank {r} waits", "for a rank in send") for r in range(2)), *(EvidenceLine(f"rank {r} stack", "dist.send(") for r in range(2))),
    ),
    "a handler of a signal with a barrier": Wrong(
        _HANDLER, "        if any_rank(came):\n            came.clear()\n            save(signal.SIGUSR1, None)\n", rule="rank-dependent-collective", evidence=_IN_HANDLER,
    ),
    "a thread with a collective": Wrong(
        "import threading\n\n\ndef work(x):  # it is the target\n    dist.all_reduce(x)  # here\n\n\ndef main(x):\n    threading.Thread(target=work, args=(x,)).start()\n",
        "    thread = threading.Thread(target=work, args=(x,))\n    thread.start()\n    thread.join()\n", "collective-order-race", "collective-order-race",
        evidence=(EvidenceLine("rank 0 calls", "#4 all_reduce (thread python 1) from work:9"),),
    ),
    "a timer with a collective": Wrong(
        "import threading\n\n\ndef work(x):  # it is the target\n    dist.all_reduce(x)  # here\n\n\ndef main(x):\n    threading.Timer(0.2, work, (x,)).start()\n",
        "    thread = threading.Timer(0.2, work, (x,))\n    thread.start()\n    thread.join()\n", "collective-order-race", "collective-order-race",
        evidence=(EvidenceLine("rank 0 calls", "#4 all_reduce (thread python 1) from work:9"),),
    ),
    "a folder that one rank makes": Wrong(
        "def work(folder, x):\n    torch.save(x, folder / 'x.pt')  # here\n",
        "    folder.mkdir(parents=True, exist_ok=True)\n", "filesystem-race", "filesystem-race",
    ),
    "a file that one rank writes and another reads": Wrong(
        "def work(path, x):\n    if dist.get_rank() == 0:\n        torch.save(x, path)\n    return torch.load(path)  # here\n",
        "    dist.barrier()  # what one rank writes is there for all\n", "filesystem-race", "filesystem-race",
    ),
    "tensors of unequal size": Wrong(
        "def work(parts, x):\n    dist.all_gather(parts, x)  # here\n", "    dist.all_gather_object(parts, x)  # here\n", "size-mismatch", "size-mismatch", op="all_gather",
    ),
}  # fmt: skip

_TABLE = "def work(sums):\n    for %s:  # here\n        dist.all_reduce(%s)\n"

LEFT_ALONE = {
    "two results, of which one is made of what one rank has": Wrong(
        _TWO + "        ys = read(ys)\n        zs = all_gather(ys)\n        print(xs, zs)\n",
        "another collective", gate=RANK,
    ),
    "a round that a generator ends by more": Wrong(
        _LAST % "x.is_last", "of its own loop", gate="last", by_rank=False
    ),
    "a list of which a rank may have nothing is sent as a tensor": Wrong(
        _SENDS_LIST % "all_gather(out, items)", "a rank that has none", gate="len(mine) != 0", by_rank=False, evidence=(_CAME,)
    ),
    "a round without items is left out of the training": Wrong(
        "def work(net, xs):\n    for x in xs:\n        if not keep.any():  # gate\n            continue\n        net(x).backward()  # here\n",
        "to make the round, too, with a loss of zero", gate="not (not keep.any())", by_rank=False,
    ),
    "what some ranks never have": Wrong(
        "def work(self, x):\n    if self.logger is None:  # gate\n        return\n    self.logger.log(mean_of(x))  # here\n",
        "a rank that has no self.logger is to make the call, too", gate="not self.logger is None", by_rank=False,
    ),
    "a call that is given what a rank has nothing of": Wrong(
        "def work(self, key):\n    rows = self.values.pop(key, None)\n    if not rows:  # gate\n        return\n    self.out.append(statistics(rows))  # here\n",
        "nothing in rows is to take part in line 9", gate="not (not rows)", by_rank=False,
    ),
    "the largest item of nothing": Wrong(_MEANS % "acc.gather(part.max())", "which a rank that has none cannot give", gate="len(part) > 0", by_rank=False),
    "an exception for another reason": Wrong(
        _STEPS % ("loss > 9", "raise ValueError('large')"), "yours to decide", "user-exception", "user-exception", gate="loss > 9", by_rank=False
    ),
    "a round that may not come to the check": Wrong(
        (_STEPS % ("loss != loss", "sys.exit(1)")).replace("        loss = net(x)\n", "        if x is None:\n            continue\n        loss = net(x)\n"),
        "not all ranks may come", "rank-exited-early", "rank-exited-early", gate="loss != loss", by_rank=False, does="decide together",
    ),

    "a table of objects": Wrong(
        _TABLE % ("name, m in sums.items()", "m.total"), "are objects", "uneven-inputs", "uneven-inputs", evidence=(EvidenceLine("loop", "for name"),)
    ),
    "an exchange that needs what a rank has": Wrong(
        "def work(mine, x):\n    if not mine:  # gate\n        return\n    x += sum(mine[0])\n    dist.all_reduce(x)  # here\n", "needs items of mine", gate="mine", by_rank=False,
    ),
    "a round whose calls are in the `try`": Wrong(
        _SKIPS.replace("y = read(x)", "dist.all_reduce(x)"), "holds calls with others", rule="swallowed-exception", evidence=(HANDLER,), does="skip together",
    ),
    "a handler that does not go on with the next round": Wrong(
        _SKIPS.replace("            continue\n", ""), "does not just go on", rule="swallowed-exception", evidence=(HANDLER,), does="skip together",
    ),
    "an exception that is to be handled elsewhere": Wrong(
        _SKIPS, "to be handled at another line", rule="swallowed-exception", evidence=(HANDLER,), does="every rank calls",
    ),
    "transfers whose number the loop changes": Wrong(
        _RINGS + "        hops = x\n", "the loop changes hops", "uneven-inputs", "uneven-inputs", evidence=(EvidenceLine("loop", "for hop"), _IRECV), op="",
    ),
    "transfers whose number is one of an object": Wrong(
        _RINGS.replace("hops + 1", "self.size - 1"), "which side should change is yours", "uneven-inputs", "uneven-inputs",
        evidence=(EvidenceLine("loop", "for hop"), _IRECV), op="",
    ),
    "a root that is a number": Wrong(_ROOT % "0", "does not show what names the root", rule="roots-disagree", op="broadcast"),
    "a loop that only one rank comes to leave": Wrong(
        _LEAVES_LOOP.replace("        if slow", "        if dist.get_rank() == 0:\n          if slow").replace("            break", "              break"),
        "not all ranks may come to line", rule="uneven-inputs", evidence=(WAY_OUT,),
    ),
    "a round that may be skipped before the test": Wrong(
        _LEAVES_LOOP.replace("        dist", "        try:\n            x = read(x)\n        except OSError:\n            continue\n        dist"), "may lead past the test",
        rule="uneven-inputs", evidence=(WAY_OUT,),
    ),
    "a test that does more than leave": Wrong(
        _LEAVES_LOOP.replace("break", "x = 0"), "more than to leave the loop", rule="uneven-inputs", evidence=(WAY_OUT,)
    ),
    "a loop that something else may end": Wrong(
        "def work(xs):\n    for x in xs:  # here\n        dist.all_reduce(x)\n        if slow():\n            break\n", "names nothing that decides",
        rule="uneven-inputs", evidence=(EvidenceLine("loop", "for x in"),),
    ),
    "a group that is made at its first use": Wrong(
        "def group(made, ranks):\n    if ranks not in made:  # gate\n        made[ranks] = dist.new_group(ranks)  # here\n    return made[ranks]\n",
        "every rank has to make the group", rule="subgroup-not-created-by-all", gate="ranks not in made", by_rank=False,
    ),
    "rounds that nothing explains": Wrong(_LEAVES_LOOP, "names nothing that decides", rule="uneven-inputs"),
    "a first round among other things": Wrong(
        "def work(x):\n    first, best = read()  # here\n    first = read()\n    dist.all_reduce(x)\n", "does more than to set one variable",
        rule="uneven-inputs", evidence=(EvidenceLine("first round", "first, best"),),
    ),
    "a first round that part of the ranks make": Wrong(
        "def work(x, group):\n    first = read()  # here\n    for _ in range(first, 9):\n        dist.all_reduce(x, group=group)\n",
        "a part of the ranks", rule="uneven-inputs", evidence=(FIRST,), group="tensor",
    ),
    "groups that cannot be sent": Wrong(
        _GROUPS % "name", "not that of a loop over their names", "collective-order-race", "collective-order-race"
    ),
    "a key whose value only that branch has": Wrong(_SETS % "str(best)", "needs the branch", rule="waits-for-store"),
    "a key that hangs on the rank alone": Wrong(
        "def work(store):\n    if dist.get_rank() == 0:\n        store.set('ready', '1')  # here\n", "nothing but the rank decides",
        rule="waits-for-store",
    ),
    "a key set in one of two branches": Wrong(
        "def work(store, ok):\n    if ok:\n        store.set('ready', '1')  # here\n    else:\n        log()\n", "without an `else`",
        rule="waits-for-store",
    ),
    "a file whose writer leaves the function": Wrong(
        "def work(path, x):\n    if dist.get_rank() == 0:\n        torch.save(x, path)\n        return x\n    return torch.load(path)  # here\n",
        "which folder the path lies in", "filesystem-race", "filesystem-race",
    ),
    "a file that is written in a step that only some ranks make": Wrong(
        "def work(path, x, busy):\n    if busy:\n        if dist.get_rank() == 0:\n            torch.save(x, path)\n        torch.load(path)  # here\n",
        "which folder the path lies in", "filesystem-race", "filesystem-race",
    ),
    "only some ranks have what makes the call": Wrong(
        "class Work:\n    def work(self, step):\n        if self.average is not None and step % 5 == 0:  # gate\n"
        "            self.average.update()  # here\n",
        "the call needs self.average, which only some ranks have", gate="self.average is not None and step % 5 == 0",
    ),
    "the other ranks make a collective too": Wrong(
        "def work(x):\n    if dist.get_rank() == 0:  # gate\n        dist.all_reduce(x)  # here\n    else:\n        dist.barrier()\n", "of their own", gate=RANK,
    ),
    "a result that may not be reached": Wrong(
        "def work(x, y):\n    if dist.get_rank() == 0:  # gate\n        print(y or dist.all_gather(x))  # here\n", "may not be evaluated", gate=RANK,
    ),
    "what the call needs is written to a file first": Wrong(
        "def work(x):\n    if dist.get_rank() == 0:  # gate\n        y = torch.save(x, 'x')\n        dist.all_reduce(y)  # here\n", "also writes", gate=RANK,
    ),
    "a text over several lines would be moved": Wrong(
        "def work(x):\n    if dist.get_rank() == 0:  # gate\n        note = '''a\n        b'''\n        dist.all_gather_object(x, note)  # here\n",
        "spans several lines", gate=RANK,
    ),
    "an elif": Wrong(
        "def work(x, y):\n    if y:\n        pass\n    elif x.sum() > 0:  # gate\n        dist.all_reduce(x)  # here\n", "elif", gate="x.sum() > 0", by_rank=False,
    ),
    "a group that the code does not name": Wrong(
        "def work(x):\n    if x.sum() > 0:  # gate\n        x.backward()  # here\n", "does not name it", gate="x.sum() > 0", by_rank=False, group="team",
    ),
    "ranks that send to each other": Wrong(
        "def work(x):\n    if x.sum() > 0:  # gate\n        dist.send(x, 1)  # here\n", "send to each other", gate="x.sum() > 0", by_rank=False, op="send",
    ),
    "a loop that only some ranks run": Wrong(
        "def work(batches):\n    if dist.get_rank() < 2:\n        for batch in batches:  # here\n            dist.all_reduce(batch)\n",
        "some ranks only", "uneven-inputs", "uneven-inputs", evidence=(LOOP,),
    ),
    "a thread that runs for long": Wrong(
        "import threading\n\n\ndef work(x):\n    while True:\n        dist.all_reduce(x)  # here\n\n\ndef main(x):\n    threading.Thread(target=work).start()\n",
        "runs for long", "collective-order-race", "collective-order-race", evidence=(EvidenceLine("rank 0 calls", "#4 all_reduce (thread python 1) from work:9"),),
    ),
    "what is sent is what was received": Wrong(
        "def work(a, left, right):\n    dist.recv(a, src=left)  # here\n    dist.send(a, dst=right)\n", "depends on what was received",
        "collective-order-race", "collective-order-race", op="recv",
    ),
    "each round has another partner": Wrong(
        "def work(a, b, peers):\n    for p in peers:\n        dist.send(b, p)  # here\n        dist.recv(a, p)\n", "another partner",
        "collective-order-race", "collective-order-race", op="send",
    ),
    "what is sent first goes elsewhere than what is received": Wrong(
        _RING, "sends to one and receives from another", "collective-order-race", "collective-order-race", op="send",
    ),
    "a handler that needs the frame": Wrong(
        _HANDLER.replace("    dist.barrier", "    print(frame)\n    dist.barrier"), "needs the frame", evidence=_IN_HANDLER[1:]
    ),
    "a handler registered twice": Wrong(
        _HANDLER.replace("    for", "    signal.signal(signal.SIGTERM, save)\n    for"), "where the handler is registered", evidence=_IN_HANDLER[1:]
    ),
    "a round that a handler's signal may miss": Wrong(
        _HANDLER + "        if slow():\n            break\n", "may leave a round before its end", evidence=_IN_HANDLER
    ),
    "a loop elsewhere than the handler": Wrong(
        _HANDLER.replace("    for", "    train(xs)\n\n\ndef train(xs):\n    for"), "the loop that the signal came into",
        evidence=(EvidenceLine("rank 1 stack", "train.py:19 in train", 19), _IN_HANDLER[1]),
    ),
    "two models": Wrong(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef work(a, b):\n    a, b = DDP(a), DDP(b)\n    a(b)  # here\n",
        "2 calls", "unused-parameters", "unused-parameters",
    ),
    "a lock": Wrong("def work(lock):\n    lock.acquire()  # here\n", "yours to decide", "rank-stuck-in-user-code", "rank-stuck-in-user-code"),
    "no condition is known": Wrong("def work(x):\n    dist.all_reduce(x)  # here\n", "names no condition"),
}  # fmt: skip
