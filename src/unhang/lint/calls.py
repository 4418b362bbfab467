"""What a call does, and gives."""

from __future__ import annotations

import re
from typing import Any

from unhang.lint import known, sorts
from unhang.lint.arguments import keeps_whole, name_at, note_output, of_result
from unhang.lint.divergence import GROUPS
from unhang.lint.doubts import changes
from unhang.lint.graphs import found_in_graph, graph_of
from unhang.lint.grids import agreed_in, group_of_mesh, is_over_group, made_group
from unhang.lint.ir import Attr, Call, Const, Expr, Found, Op, Ref
from unhang.lint.keeping import note_plateau
from unhang.lint.libraries import Collective
from unhang.lint.logged import own_metric
from unhang.lint.passing import MAY_MISS, Passing
from unhang.lint.picks import batch_drawn, found_in_pick, part_by_class
from unhang.lint.replicas import is_for_core, replica
from unhang.lint.single import found_in_call
from unhang.lint.special import (
    is_bare,
    is_none,
    is_own_path,
    is_plain_method,
    is_share,
    makes_batches,
    prepared,
    text_of,
    value_of_name,
)
from unhang.lint.tensors import LISTS, fact_of, of_builtin, tensor_method
from unhang.lint.unnamed import note_call, runs_inner
from unhang.lint.values import (
    CHANCE,
    COMPARES,
    DOUBT,
    DRAWN,
    LOCAL,
    LOSS,
    MAYBE,
    MOST_WAY,
    NO_PARAMS,
    NO_ROOM,
    NONE_BY_BATCH,
    OF_DATA,
    OWN_BATCH,
    PLAIN,
    RANK,
    UNEVEN,
    Conditional,
    Effect,
    Value,
    mixed,
)
from unhang.lint.wellknown import ORDERS, SPECIAL, drawn, drawn_by, is_own_metric, is_own_order, metric

# What these give differs as their arguments differ.
_PURE = {
    *("int", "str", "bool", "float", "abs", "len", "min", "max", "tuple", "list", "set", "sorted", "any", "all", "sum", "range", "frozenset"),
    *("enumerate", "zip", "reversed", "iter", "next", "round", "divmod", "map", "filter", "repr", "hash", "copy.copy"),
    *("copy.deepcopy", "torch.tensor", "torch.as_tensor", "tqdm.tqdm", "tqdm.auto.tqdm", "itertools.islice"),
}  # fmt: skip
_GO_THROUGH = {"iter", "enumerate", "zip", "list", "tuple", "sorted", "map", "tqdm.tqdm", "tqdm.auto.tqdm"}
_SAME_OBJECT = {"to", "cuda", "cpu", "train", "eval", "half", "float", "bfloat16", "double", "requires_grad_", "compile", "apply", "clone"}  # fmt: skip
_IS_PLAIN = re.compile(
    r"act|drop|pool|loss|crit|softmax|sigmoid|func|fn$|transform|process|sampl|sched|metric|log|hook|callback|token|generat|^_|^get_"
)
_JOINS = {"torch.cat", "torch.concat", "torch.stack", "numpy.concatenate", "numpy.stack", "torch.utils.data.TensorDataset"}  # fmt: skip
_RUNS, _PROCESSES = {"submit", "run_in_executor", "to_thread"}, {"Process", "spawn", "start_processes"}  # these call it
_READS_FILE = re.compile(r"(?:^|_)(?:open|load|read)(?:_|$)")
_WRITES = {"copy", "copyfile", "move", "write_text", "write_bytes", "save", "savez", "save_file", "dump"}
_PATHS = {"pathlib.Path", "os.path.join", "os.path.abspath", "str", "os.fspath", "os.path.dirname", "os.path.basename"}
_OF_A_PATH = {"joinpath", "with_suffix", "format", "strftime", "isoformat", "resolve", "replace"}


class Calls(Passing):
    """The part of a frame that makes calls."""

    def _own_state(self, node: Call, full: str, name: str, args: list[Value]) -> Value | None:
        """What a rank reads of its own clock, process or node, or draws at random; None: it is something else."""
        if full in known.LOCAL_SOURCES:
            return Value(LOCAL)
        if "generator" in node.names and (full.rpartition(".")[0] == "torch" or name[-1:] == "_"):
            return drawn_by(node, args)
        if full in ORDERS and is_own_order(self, full, node):
            return Value(DRAWN)
        draws = full in known.CHANCE or name in ("uniform_", "bernoulli_")
        of = DRAWN if full.partition(".")[0] in self.link.own_seeds else CHANCE
        return Value(of) if draws and "generator" not in node.names else None

    def item(self, base: Expr, index: Expr) -> Value:
        """`base[index]`, also of what a trainer keeps."""
        return own_metric(self, base, index) or super().item(base, index)

    def got(self, node: Call, owner: str, base: Value, args: list[Value]) -> Value | None:
        """What `get` gives, also of what a trainer keeps."""
        return own_metric(self, Ref(owner), node.args[0]) or super().got(node, owner, base, args)

    def call(self, node: Call) -> Value:
        """What a call gives, after it has taken effect."""
        func = node.func
        if isinstance(func, Ref) and (other := self.env.get(func.path)) is not None and other.kind == "lib":
            func = Ref(other.sort[1])
        owner, base, name = "", PLAIN, ""
        if isinstance(func, Ref):
            owner, _, name = func.path.rpartition(".")
            callee = self.ref(func.path)
            if owner:
                base = self.ref(owner)
        elif isinstance(func, Attr):
            base, name = self.value(func.base), func.name
            callee = self.attribute(base, name)
        else:
            callee = self.value(func)
        args = [self.value(a) for a in node.args]
        full = self.link.full_of(callee)
        found_in_call(self, name, full, node, args)
        if callee.dep & DRAWN or callee.params:
            found_in_pick(self, node, callee)
        mark = len(self.effects)
        given = batch_drawn(self, base, name, self._called(node, callee, full, owner, base, name, args))
        part_by_class(self, node, base, mark)
        self.last_given = args
        return given

    def _called(
        self, node: Call, callee: Value, full: str, owner: str, base: Value, name: str, args: list[Value]
    ) -> Value:
        made = known.collective(full) if full else None
        if made is not None:
            return self._of_library(node, made, args, name, full)
        like = known.WRAPPERS.get(full) or (self.link.wrapper_like(callee.sort) if callee.kind == "class" else "")
        if like:
            return self._wrapper(node, like, args)
        if full.startswith("torchmetrics.") and full.rpartition(".")[2][:1].isupper():
            return metric(self, node)
        sort, kind = callee.sort, callee.kind
        if kind == "one of":
            return self._one_of(node, sort[1], args, name)
        if kind == "bound" and base.kind == "obj" and name in known.HIDDEN["metric"] and is_own_metric(self, sort):
            return self._wrapped(node, "metric", name, args, name)
        if kind in ("fn", "bound"):
            return self._function(node, sort, args, name)
        if kind == "class":
            return self._constructor(node, sort, args, name)
        if kind in ("layer", "obj") and self._gathers(node, callee):
            self.emit(Effect("forward", "", (self.place(node, name),), "engine"))
        if kind == "layer":
            self._layer(node, str(sort[1]), name)
            if args and args[0].sort == sorts.PART:  # as many rows as it was given
                return args[0]
        if kind == "obj":
            target = self._called_object(node, sort, name)
            if target is not None:
                return self._function(node, ("bound", *target), args, name)
        if kind == "wrap":
            inside = self._runs_inside(node, callee.const, args, name)
            out = self._wrapped(node, sort[1], "()", args, name)
            return out._replace(dep=out.dep | inside.dep & UNEVEN) if inside.sort == sorts.OWN_KEYS else out
        if kind == "param":
            return self._of_param(node, sort[1], "()", args, name)
        if (made_alone := runs_inner(self, node, name, sort, args)) is not None:
            return made_alone
        if name == "backward" and self.graphs:
            of = func.base if isinstance(func := node.func, Attr) else node.args[0] if node.args else Ref(owner)
            if (sort := graph_of(self, of)) is not None:
                return self._backward(node, sort)
        made = known.method(owner, name) if owner else of_result(name) if isinstance(node.func, Attr) else None
        own = self.link.project.by_receiver(owner, name) if made is not None and name not in known.METHODS else None
        if own is not None:  # a trainer of the project, not that of a library
            return self._function(node, ("bound", *own), args, name)
        if made is not None and base.sort == sorts.INFERRED:
            self.found("LNT303", node, how="its shape is taken from the shard of this rank", call=name)
        if made is not None and (base.kind not in ("ext", "wrap")):
            return self._collective(node, made, args, name)
        if base.kind == "super" and name == "__iter__" and self.link.shares_seed(base.sort):
            return self._collective(node, Collective("broadcast"), args, name)
        if name == "get" and args and (got := self.got(node, owner, base, args)) is not None:
            return got
        target = self._of_nobody(owner, base, name)
        if target is not None:
            return self._guessed(node, target, args, name)
        if name == "scale" and len(args) == 1 and args[0].sort is not None:  # of a GradScaler
            return args[0]
        return self._of_sort(node, owner, base, name, args) or self._other(node, callee, full, owner, base, name, args)

    def _of_sort(self, node: Call, owner: str, base: Value, name: str, args: list[Value]) -> Value | None:
        """A method of what is known to be wrapped, a parameter, an output; None: that says nothing."""
        kind, sort = base.kind, base.sort
        if kind == "wrap":
            if name in known.HIDDEN.get(sort[1], ()):
                return self._wrapped(node, sort[1], name, args, name)
            if (made := known.of_sort(sort[1], name)) is not None:
                return self._collective(node, made, args, name)
            if name == "prepare" or (sort[1] == "fabric" and name.startswith("setup")):
                return prepared(node, args)
        if sort in (sorts.DRAWS, sorts.GENERATOR):
            return drawn(self, owner, base, name, args)
        if (kind in ("wrap", "obj") or sort == sorts.ALONE) and name in _SAME_OBJECT:  # `Net().to(device)`
            return replica(self, base) if self.link.has_replicas and name == "to" else base
        if name == "to" and self.link.has_replicas and (kind == "layer" or is_for_core(self, node, base, args)):
            return replica(self, base)
        if kind == "param" and name not in _SAME_OBJECT and not is_plain_method(name):
            self._of_param(node, sort[1], name, args, name)
        if kind in ("out", "of") and name == "backward":
            return self._backward(node, sort)
        if kind == "many" and name in ("values", "children", "parameters"):
            return base
        return base if kind == "rank" and name == "item" else group_of_mesh(sort, name, args)

    def _of_library(self, node: Call, made: Collective, args: list[Value], name: str, full: str) -> Value:
        """A collective that is called by its full name."""
        if "use_local_synchronization" in node.names or node.given("no_dist") == Const(True):
            return PLAIN  # it is told to make no collective of all ranks
        if full.startswith("torch.distributed.nn."):  # its backward meets as well
            found_in_graph(self, node, args[:1], name)
        return self._collective(node, made, args, name, full.startswith("torch_xla"))

    def _wrapper(self, node: Call, sort: str, args: list[Value]) -> Value:
        """What makes an object with collectives of its own."""
        of_some = (sort == "ddp" and not is_none(node.given("process_group"))) or is_over_group(self, node)
        if sort == "ddp" and self._keeps_to_itself(node):
            sort = "ddp without buffers"
        is_alone = node.given("devices") == Const(1) and node.given("num_nodes") in (None, Const(1))
        made_of = Value(sort=("ext", sort) if is_alone else None if of_some else ("wrap", sort))
        inside = args[0].sort if args else None
        if made_of.sort == ("wrap", sort) and inside is not None and inside[0] in ("obj", "param"):
            made_of = made_of._replace(const=inside[:3])
        if sort == "fsdp2" and node.args and isinstance(node.args[0], Ref):
            self.wrap_in_place(node.args[0].path, made_of)
        return made_of

    def _keeps_to_itself(self, node: Call) -> bool:
        """Whether the forward of DDP makes no collective: there are no buffers, or it is told to leave them alone."""
        if node.given("broadcast_buffers") == Const(False):
            return True
        of, file = node.given("module", 0), self.source
        own = [f for f in file.functions if f is self.function or (f.owner and f.owner == self.function.owner)]
        return of is not None and self.link.buffers.are_missing(file.path, own, of, node.line)

    def _other(
        self, node: Call, callee: Value, full: str, owner: str, base: Value, name: str, args: list[Value]
    ) -> Value:
        """A call of which only the name is known. It may call what it is given."""
        is_given = owner == "self" and not callee.sort and self._runs_layers() and _IS_PLAIN.search(name) is None
        is_given = is_given and (self.file, self.function.owner, name) in self.link.given
        if is_given and self.link.project.is_module(self.file, self.function.owner):
            self._layer(node, name, name)
        self._hands_over(node, full, name, args)
        if name in ("log", "log_dict") and node.given("sync_dist") == Const(True):
            found_in_call(self, name, "", node, args)
            return self._collective(node, Collective("all_reduce"), args, name)
        is_own = "." not in owner and "Queue" in self.function.words  # no other thread fills it, perhaps
        if name == "empty" and not args and known.QUEUE.search(owner.lower()) and not is_own:
            return Value(LOCAL, sort=sorts.TEST)
        if name == "is_set" and self.link.is_flag(self.file, owner):
            return Value(LOCAL, sort=sorts.TEST)
        if (name in known.PROGRESS and not args) or (name or full.rpartition(".")[2]) in known.FREE_PORTS:
            return Value(LOCAL, sort=sorts.TEST)
        if name == "generate" and not full:  # each rank stops when its own texts have come to their ends
            return Value(OWN_BATCH, NO_PARAMS, ("ragged", "generate"))
        if full.startswith("torch.nn.") and full.rpartition(".")[2][:1].isupper() and full not in LISTS:
            return Value(sort=("layer", full)) if known.has_parameters(full) else PLAIN
        if full == "next" and len(args) == 1 and is_share(args[0]):
            self.raises.add(("StopIteration", RANK, NO_PARAMS))
        if full == "next" and len(args) == 2 and is_share(args[0]) and args[1].const is None:
            return Value(NONE_BY_BATCH)
        fact = fact_of(full, base, name, args, self._in_forward())
        if fact is not None:
            return fact
        self._stepped(node, owner, name, args)
        special = SPECIAL.get(full)
        if special is not None:
            return special(self, node, args)
        if (own := self._own_state(node, full, name, args)) is not None:
            return own
        if name == "backward" and args and args[0].kind in ("out", "of"):
            return self._backward(node, args[0].sort)
        by_name = value_of_name(name or full.rpartition(".")[2])
        if by_name.dep and not callee.dep & ~RANK:
            return by_name._replace(group=self.group_asked(node, owner, name))
        if self._asks_for_file(node, full, owner, base, name, args):
            return Value(LOCAL, sort=sorts.TEST)
        if full in known.LISTS_FOLDER or (owner and not full and name in ("iterdir", "glob", "rglob")):
            return Value(sort=sorts.LISTING)
        if any(is_share(a) for a in args) and (full in _JOINS or makes_batches(name or full)):
            return Value(UNEVEN, sort=sorts.MADE if sorts.MADE in (a.sort for a in args) else ("share", "batches"))
        joined = mixed(base, *args)
        for v in args if full in _GO_THROUGH else ():
            if v.kind == "obj":
                self.go_through(v)
        if ("ext", full) in COMPARES:
            return joined._replace(sort=sorts.TEST) if joined.dep or joined.params else PLAIN
        if full in _PURE:
            return of_builtin(full, len(node.args) - len(node.names), args, joined)
        if full in _PATHS or name in _OF_A_PATH:
            return text_of([base, *args], Value(joined.dep & LOCAL, joined.params), name == "format")
        made = tensor_method(full, base, name, args, joined)
        is_constant = self.link.has_graphs and made.sort in (None, sorts.AGREED) and is_bare(full, name, node)
        return made._replace(sort=sorts.BARE) if is_constant else made

    def _asks_for_file(self, node: Call, full: str, owner: str, base: Value, name: str, args: list[Value]) -> bool:
        """Whether it asks if a file is there that may be so for this rank alone. Reading one of its own is noted."""
        if name in known.IS_THERE:
            at = owner if owner and not full else name_at(node)
            return is_own_path([base, *args]) or changes(self, at, node.line)
        does = name or full.rpartition(".")[2]
        mode = next((v.const for v in args[:2] if isinstance(v.const, str) and len(v.const) < 4), None)
        is_to_write = isinstance(mode, str) and mode[:1] in ("w", "a", "x")
        self.own_reads += not is_to_write and _READS_FILE.search(does) is not None and is_own_path([base, *args[:1]])
        if (is_to_write and does == "open") or does in _WRITES:  # the disk may be full for this rank alone
            by_path = sorts.OWN_PATH in (v.sort for v in (base, *args[:2]))
            self.raises |= {NO_ROOM} if by_path else set()
        return False

    def _hands_over(self, node: Call, full: str, name: str, args: list[Value]) -> None:
        """What is called may call what it is given; a hook of some ranks, and what runs in a thread, is called."""
        note_call(self, node, full, name, args)
        is_sure = name in _RUNS or (name.startswith("register_") and self.is_under(RANK))
        for v in args if name not in _PROCESSES else ():
            if v.kind in ("fn", "bound"):
                for e in self.link.made_by(v, "()"):
                    self.emit(e._replace(is_sure=is_sure, way=(self.place(node, name), *e.way)[:MOST_WAY]))

    def _stepped(self, node: Call, owner: str, name: str, args: list[Value]) -> None:
        """A wrapped module is given to what makes a step of it, by its name. The result of a task raises what the task has raised, here alone."""
        if name == "step":
            note_plateau(self, owner, args)
        if name == "result" and len(args) < 2 and self.hands_out_work:
            self.alone_before = f"{owner or 'future'}.result()"
        wraps = [v.sort[1].partition(" ")[0] for v in args if v.kind == "wrap"]
        is_of_ranks = any(w in ("ddp", "fsdp", "fsdp2") for w in wraps)
        if is_of_ranks and any(word in name for word in ("step", "train", "forward", "loss")):
            self.emit(Effect("backward", "", (self.place(node, name),), wraps[0], is_sure=False))

    def _collective(self, node: Call, made: Collective, args: list[Value], name: str, is_of_tpu: bool = False) -> Value:
        group = made.group
        given = node.given("group", made.group_at) or node.given("process_group") or node.given("pg")
        if given is not None and made.op not in GROUPS:
            group = self.group_of(given)
        is_sure = not keeps_whole(self, node, made.op)
        doubt = DOUBT * (is_of_tpu and self.link.trains)  # done on a TPU instead
        self.emit(Effect(made.op, group, (self.place(node, name),), is_sure=is_sure, doubt=doubt))
        if name.startswith("gather"):
            found_in_call(self, "gathered", made.op, node, args)
        for at in made.unifies:
            expr = node.given("tensor" if at == 0 else "", at) or node.given("object_list")
            whole = expr.parts[0] if isinstance(expr, Op) and expr.op == "[]" else None
            if isinstance(whole, Ref) and self.ref(whole.path).dep & OF_DATA:
                expr = whole  # one of the losses, or each of them in a loop
            if isinstance(expr, Ref):
                old = self.ref(expr.path)
                if old.kind == "param" and "." not in expr.path:
                    self.unified.add(old.sort[1])
                self.env[expr.path] = agreed_in(self, group, old)
        note_output(self, node, made.op, group)
        if made.op in GROUPS:
            return made_group(self, node, made.op, name, args)
        return Value(sort=sorts.AGREED) if made.returns else PLAIN

    def _wrapped(self, node: Call, wrapper: str, method: str, args: list[Value], name: str) -> Value:
        op = known.HIDDEN.get(wrapper, {}).get(method)
        if op is None:
            return PLAIN
        if method in ("()", "forward"):
            self.forwards += 1
            found_in_call(self, "forward", "", node, args)
        if op and not (op == "backward" and self.no_sync):
            is_sure = op != "save" or wrapper != "hf trainer" or not self.link.is_on_cpu
            self.emit(Effect(op, "", (self.place(node, name),), wrapper.partition(" ")[0], is_sure=is_sure))
        return Value(LOSS, NO_PARAMS, ("out", wrapper)) if op in ("forward", "") else PLAIN

    def _of_param(self, node: Call, param: int, method: str, args: list[Value], name: str) -> Value:
        self.emit(Effect("call", "", (self.place(node, name),), "", param, method))
        by = next((c.value for c, *_ in self.conditions if c.value.dep & RANK and c.value.zero is not None), None)
        if by is not None and method == "()":
            self.alone[param] = by
        plain = len(node.args) - len(node.names)
        for n, v in enumerate(args) if method == "()" else ():
            if v.dep & MAY_MISS:  # the caller knows which module it is
                which = f"missing:{n if n < plain else node.names[n - plain]}"
                self.later.append(Conditional(param, which, Found("LNT111", node.line, node.column + 1), self.path))
        outs = [v for v in args if v.kind in ("out", "of")]
        if outs:  # a criterion on what a module gave
            return Value(mixed(*args).dep & OF_DATA, NO_PARAMS, outs[0].sort)
        return Value(MAYBE, NO_PARAMS, ("of", param)) if method in ("()", "forward") else PLAIN

    def _backward(self, node: Call, sort: tuple[Any, ...]) -> Value:
        if not self.no_sync:
            place = self.place(node, "backward")
            if sort == ("out", "replica"):
                return PLAIN
            if sort[0] == "out":
                self.emit(Effect("backward", "", (place,), sort[1].partition(" ")[0]))
            else:
                self.emit(Effect("call", "", (place,), "", sort[1], "backward"))
        return PLAIN
