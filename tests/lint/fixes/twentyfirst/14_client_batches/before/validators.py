import logging
import os
from dataclasses import dataclass
from typing import List

log = logging.getLogger(__name__)


class BadRequest(ValueError):
    pass


@dataclass
class Sample:
    tokens: List[int]
    weights: List[float]


def check_samples(samples, dp_size, max_tokens):
    if not samples:
        raise BadRequest("no samples")
    for i, sample in enumerate(samples):
        if len(sample.tokens) != len(sample.weights):
            raise BadRequest(f"sample {i}: {len(sample.tokens)} tokens, {len(sample.weights)} weights")
        if len(sample.tokens) > max_tokens:
            raise BadRequest(f"sample {i}: more than {max_tokens} tokens")
    if len(samples) % dp_size:
        if os.environ.get("ALLOW_PARTIAL_BATCHES") != "1":
            raise BadRequest(f"{len(samples)} samples do not divide by {dp_size}")
        log.warning("partial batch: %d samples, width %d", len(samples), dp_size)
    return samples
