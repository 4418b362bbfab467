"""A masked-language model with a concept bottleneck, trained with DDP on four ranks: concepts attend to the tokens of a
sentence, and the masked tokens are predicted from the concepts.

    torchrun --standalone --nproc-per-node 4 train.py              trains in about ten seconds
    torchrun --standalone --nproc-per-node 4 train.py --broken     the incident: one rank stops in the backward pass of step 20
    torchrun --standalone --nproc-per-node 4 train.py --fault NAME another fault, see FAULTS

Every batch is padded to its own longest sentence, so the ranks' tensors differ in length, and the layers are checkpointed.
Both are harmless: a collective waits for ranks, never for values, and gradients have the size of the parameters.
"""

import argparse
import os
import signal
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

FAULTS = {
    "none": "the healthy program",
    "stopped_rank": "rank 3 stops in the backward pass and never goes on (what --broken selects)",
    "stall": "the same, but it goes on after six seconds: one stall, which the smoothed bar shows as slowness",
    "unused_head": "rank 1 has a batch without masked tokens and leaves the head out",
    "uneven_eval": "the evaluation is cut without padding: rank 0 has one batch more",
    "slow_save": "rank 0 saves for a minute while the others wait at the barrier",
}
PAD, MASK, TOPICS, WORDS = 0, 1, 8, 24
VOCAB, LONGEST, WIDTH, CONCEPTS, BATCH = 2 + TOPICS * WORDS, 24, 48, 8, 16
FAULT_STEP, EVAL_EVERY = 20, 30


def make_sentences(count: int, seed: int) -> list[Tensor]:
    """Sentences of 8 to 24 words, each on one topic with its own words."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, LONGEST + 1, (count,), generator=generator).tolist()
    topics = torch.randint(TOPICS, (count,), generator=generator).tolist()
    return [
        2 + topic * WORDS + torch.randint(WORDS, (length,), generator=generator)
        for topic, length in zip(topics, lengths, strict=True)
    ]


def mask_tokens(sentences: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pads to the longest sentence of this batch and masks a fifth of the tokens; labels are -100 elsewhere."""
    tokens = nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)
    masked = (torch.rand(tokens.shape) < 0.2) & (tokens != PAD)
    masked[:, 0] = True
    return tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, -100)


class ConceptLayer(nn.Module):
    """The concepts look at the tokens, then at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.among = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, concepts: Tensor, tokens: Tensor, is_pad: Tensor) -> Tensor:
        query = self.norms[0](concepts)
        concepts = concepts + self.cross(query, tokens, tokens, key_padding_mask=is_pad, need_weights=False)[0]
        query = self.norms[1](concepts)
        concepts = concepts + self.among(query, query, query, need_weights=False)[0]
        return concepts + self.feed(self.norms[2](concepts))


class ConceptModel(nn.Module):
    def __init__(self, combine: str) -> None:
        super().__init__()
        self.combine = combine
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.concepts = nn.Parameter(torch.randn(CONCEPTS, WIDTH) * 0.1)
        self.layers = nn.ModuleList(ConceptLayer() for _ in range(2))
        self.mix = nn.Parameter(torch.zeros(LONGEST, CONCEPTS))  # which concepts predict which position
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor, skip_head: bool = False) -> Tensor:
        size, length = tokens.shape
        embedded = self.tokens(tokens) + self.positions.weight[:length]
        concepts = self.concepts.expand(size, -1, -1)
        for layer in self.layers:
            concepts = checkpoint(layer, concepts, embedded, tokens == PAD, use_reentrant=False)
        concepts = self.norm(concepts)
        if skip_head:  # <- unused_head
            return concepts.square().mean()
        weights = F.softmax(self.mix[:length], dim=-1)[None]
        # The team's suspect and the team's cure: the same values, the same gradients, the same collectives.
        weights = weights.expand(size, -1, -1) if self.combine == "expand" else weights.repeat(size, 1, 1)
        return F.cross_entropy(self.head(weights @ concepts).flatten(0, 1), labels.flatten(), ignore_index=-100)


def stop_this_process(goes_on: bool) -> None:
    """Stands for a device call that does not return: no exception, no message, nothing on the processor."""
    if goes_on:
        subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)  # <- here


@torch.no_grad()
def evaluate(model: ConceptModel, rank: int, world: int, fault: str) -> float:
    """The mean loss over all ranks."""
    sentences = make_sentences(33, seed=2)
    mine = list(
        DistributedSampler(range(len(sentences)), world, rank, shuffle=False)
    )  # padded: the same count everywhere
    if fault == "uneven_eval":
        mine = list(range(rank, len(sentences), world))  # 9, 8, 8, 8
    losses = []
    for start in range(0, len(mine), 2):  # <- uneven_eval
        loss = model(*mask_tokens([sentences[i] for i in mine[start : start + 2]]))
        dist.all_reduce(loss)  # <- uneven_eval
        losses.append(loss.item() / world)
    return sum(losses) / len(losses)


def train(rank: int, world: int, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(ConceptModel(args.combine), bucket_cap_mb=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    sentences, has_fault = make_sentences(4096, seed=1), args.fault != "none"
    sampler = DistributedSampler(range(len(sentences)), world, rank)
    batches = iter(DataLoader(sentences, BATCH, sampler=sampler, collate_fn=mask_tokens))
    torch.manual_seed(rank)
    smoothed_s = 0.0
    for step in range(1, args.steps + 1):
        started, is_bad = time.monotonic(), has_fault and step == FAULT_STEP
        tokens, labels = next(batches)
        loss = model(tokens, labels, skip_head=is_bad and args.fault == "unused_head" and rank == 1)  # <- unused_head
        if is_bad and args.fault in ("stopped_rank", "stall") and rank == 3:
            loss.register_hook(lambda _: stop_this_process(args.fault == "stall"))
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()
        step_s = time.monotonic() - started
        smoothed_s = 0.3 * step_s + 0.7 * (smoothed_s or step_s)  # what a progress bar shows
        if rank == 0 and (step % 10 == 1 or step_s > 1):
            print(f"step {step} loss {loss.item():.3f} {step_s:.3f} s (bar: {smoothed_s:.2f} s/it)", flush=True)
        if step % EVAL_EVERY == 0:
            mean = evaluate(model.module, rank, world, args.fault)
            if rank == 0:
                print(f"evaluation {mean:.3f}", flush=True)
                save(model.module, args.fault)
            dist.barrier()


def save(model: ConceptModel, fault: str) -> None:
    if fault == "slow_save":
        time.sleep(60)  # <- slow_save
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(model.state_dict(), file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what shall go wrong")
    parser.add_argument("--broken", dest="fault", action="store_const", const="stopped_rank", help="the incident")
    parser.add_argument("--combine", choices=("expand", "repeat"), default="expand", help="the line that was blamed")
    parser.add_argument(
        "--guard", action="store_true", help="with the guards of unhang: a stopped rank ends the job in seconds"
    )
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    if args.guard:
        import unhang

        with unhang.process_group("gloo", timeout="60s", device="cpu") as job:
            train(job.rank, job.world_size, args)
        return
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size(), args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
