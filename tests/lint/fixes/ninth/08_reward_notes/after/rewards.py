import re

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)


def format_reward(prompts, texts, note, extra):
    return [1.0 if ANSWER.search(t) else 0.0 for t in texts]


def proof_reward(prompts, texts, note, extra):
    scores = []
    checked = []
    for prompt, text in zip(prompts, texts):
        found = ANSWER.search(text)
        if prompt["kind"] != "proof" or found is None:
            scores.append(0.0)
            continue
        ok = found.group(1).strip() == prompt["target"]
        checked.append(ok)
        scores.append(1.0 if ok else -0.5)
    if checked:
        note("proof_accuracy", sum(checked) / len(checked))
        extra("proof_checked", [str(c) for c in checked])
    return scores
