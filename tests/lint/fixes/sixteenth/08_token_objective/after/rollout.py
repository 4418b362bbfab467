import torch

STOP = 0


@torch.no_grad()
def complete(policy, prompts, limit):
    tokens, done = prompts, torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    for _ in range(limit):
        probs = policy(tokens)[:, -1].softmax(-1)
        step = torch.multinomial(probs, 1).masked_fill(done[:, None], STOP)
        tokens = torch.cat([tokens, step], 1)
        done |= step[:, 0] == STOP
        if done.all():
            break
    completion = tokens[:, prompts.size(1):]
    mask = torch.cumsum(completion == STOP, 1) <= 1
    return {"tokens": tokens, "mask": mask.float(), "reward": mask.sum(1).float().neg()}


def token_logp(policy, tokens, length):
    logp = policy(tokens[:, :-1]).log_softmax(-1)
    return logp.gather(-1, tokens[:, 1:, None]).squeeze(-1)[:, -length:]
