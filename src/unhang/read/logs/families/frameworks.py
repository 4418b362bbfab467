"""What training loops print of themselves: steps, losses, loss scales, skipped steps."""

from __future__ import annotations

import re

from unhang.read.logs.patterns import Pattern

_NAN = r"(?:nan|-?inf)"

PATTERNS = (
    Pattern(
        "learn.overflow",
        r"(?:OVERFLOW!|Overflow detected\.).*Skipping step\..*?loss scale: (?P<before>[\d.e+-]+), (?:but hysteresis|reducing to) (?P<after>[\d.e+-]+)?|"
        r"Gradient overflow\. +Skipping step, loss scaler \d+ reducing loss scale to (?P<scale>[\d.e+-]+)|"
        r"gradient overflow detected, ignoring gradient, setting loss scale to: (?P<fairseq>[\d.e+-]+)",
        ("OVERFLOW!", "Overflow detected.", "Gradient overflow.", "gradient overflow detected"),
        (
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
            "[Rank 0] Overflow detected. Skipping step. Attempted loss scale: 1, reducing to 1",
            "[fp16] OVERFLOW! Skipping step. Attempted loss scale: 1024, but hysteresis is 2. Reducing hysteresis to 1",
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
            "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0",
        ),
        is_background=True,
    ),
    Pattern(
        "learn.scale_minimum",
        r"Current loss scale already at minimum|Minimum loss scale reached",
        ("already at minimum", "Minimum loss scale reached"),
        (
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        ),
        says="crash",
    ),
    Pattern(
        "learn.scale",
        r"(?:loss[ _-]scale|grad[ _]scale|scaler_scale|reducing loss scale to)['\"]?(?: to)?\s*[:= ]\s*"
        r"(?P<scale>\d+\.?\d*(?:[eE][+-]?\d+)?)(?![\d.]*:)",
        ("loss scale", "loss_scale", "loss-scale", "grad scale", "grad_scale", "scaler_scale"),
        (
            "epoch 3 step 900 loss: 2.31 loss_scale: 0.0",
            "| lm loss: 6.3E+00 | loss scale: 65536.0 | grad norm: 0.9 |",
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 8.165126103939127e-202",
        ),
        not_examples=("dynamic loss scale enabled",),
        flags=re.IGNORECASE,
        is_background=True,
    ),
    Pattern(
        "learn.loss_nan",
        rf"(?:['\"]?(?:\btrain[_/ ])?(?:lm )?loss['\"]?)\s*[:=]?\s*{_NAN}\b",
        ("loss",),
        (
            "{'loss': nan, 'learning_rate': 2e-05, 'epoch': 0.4}",
            "iteration 120 | lm loss: nan | loss scale: 1.0 | grad norm: nan",
            "step 44 loss=nan",
        ),
        not_examples=("{'loss': 1.3, 'grad_norm': nan}", "loss information: none"),
        flags=re.IGNORECASE,
        is_background=True,
    ),
    Pattern(
        "learn.loss_finite",
        r"(?:['\"]?(?:\btrain[_/ ])?(?:lm )?loss['\"]?)\s*[:=]?\s*(?P<loss>-?(?=[\d.eE+-]*[1-9])\d+\.?\d*(?:[eE][+-]?\d+)?)\b(?! ?%)",
        ("loss",),
        ("{'loss': 0.8123, 'learning_rate': 2e-05}", "lm loss: 6.3E+00 | loss scale: 65536.0", "step 10, loss 2.31"),
        not_examples=("{'loss': 0.0, 'grad_norm': nan}", "{'loss': nan}", "reducing loss scale to 32768"),
        flags=re.IGNORECASE,
        is_background=True,
    ),
    Pattern(
        "learn.loss_zero",
        r"['\"]loss['\"]:\s*0(?:\.0+)?\s*[,}]",
        ("'loss'", '"loss"'),
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.9e-05, 'epoch': 0.2}",),
        not_examples=("{'loss': 0.01, 'grad_norm': 1.0}",),
        is_background=True,
    ),
    Pattern(
        "learn.grad_nan",
        rf"grad(?:ient)?[_ ]?norm['\"]?\s*[:=]\s*{_NAN}\b",
        ("grad_norm", "grad norm", "gradnorm", "gradient_norm"),
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.9e-05}", "| grad norm: nan | params norm: 12.1 |"),
        not_examples=("{'grad_norm': 1.02}",),
        flags=re.IGNORECASE,
        is_background=True,
    ),
    Pattern(
        "learn.grad_finite",
        r"grad(?:ient)?[_ ]?norm['\"]?\s*[:=]\s*(?P<norm>\d+\.?\d*(?:[eE][+-]?\d+)?)",
        ("grad_norm", "grad norm", "gradnorm", "gradient_norm"),
        ("{'loss': 0.3, 'grad_norm': 0.59, 'learning_rate': 1.9e-05}",),
        not_examples=("{'grad_norm': nan}",),
        flags=re.IGNORECASE,
        is_background=True,
    ),
    Pattern(
        "learn.skipped_iterations",
        r"number of (?P<what>skipped|nan) iterations:\s*(?P<count>\d+)",
        ("number of skipped iterations", "number of nan iterations"),
        ("| loss scale: 1.0 | number of skipped iterations:   1 | number of nan iterations:   0 |",),
        is_background=True,
    ),
    Pattern(
        "learn.step_skipped",
        r"(?:out of memory|OOM|OutOfMemoryError|\bnan\b|NaN|inf\b|overflow)[^\n]{0,80}?\b(?:skipping|skip|ignoring|continuing|recover)\b[^\n]{0,30}"
        r"\b(?:batch|step|sample|update|iteration|pass)\b|\b[Ss]kip(?:ping)?\b[^\n]{0,30}\b(?:batch|step|sample|update|iteration)\b"
        r"[^\n]{0,40}?(?:out of memory|OOM|\bnan\b|NaN|error|exception)|attempting to recover from OOM in (?:forward|backward)",
        ("kipping", "skip ", "gnoring", "ontinuing", "recover"),
        (
            "WARNING: ran out of memory with exception: CUDA out of memory; skipping batch",
            "Loss is NaN, skipping this batch",
            "Skipping batch 1203 because of OOM",
            "attempting to recover from OOM in forward/backward pass",
        ),
        not_examples=(
            "Gradient overflow detected by the scaler, continuing",
            "skipping the first 10 batches of the epoch",
        ),
    ),
    Pattern(
        "learn.desync",
        r"(?:[Pp]arameters?|[Ww]eights|[Mm]odel(?: state)?|[Rr]eplicas?|[Mm]odel parameters) (?:are|is|have|has)?\s*"
        r"(?:not (?:in sync|the same|identical|synchroni[sz]ed)|out of sync|diverged|differ(?:ent)?) (?:across|between|among|on)"
        r" (?:the )?(?:ranks|workers|processes|replicas|different ranks|data parallel)|"
        r"Fatal error: gradients are inconsistent between workers|Replicas? (?:are )?out of sync",
        (
            "in sync",
            "out of sync",
            "the same across",
            "the same between",
            "identical",
            "diverged",
            "differ",
            "inconsistent between workers",
            "synchronized across",
            "synchronized between",
        ),
        (
            "AssertionError: parameters are not the same across ranks",
            "FloatingPointError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=legacy_ddp.",
            "RuntimeError: model parameters are out of sync across ranks",
        ),
        says="crash",
    ),
)
