import deepspeed
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from prompts import prompt_loader
from rollout import EngineRollout

STUDENT = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-6}},
}
TEACHER = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def start(name, config, trainable):
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16)
    params = model.parameters() if trainable else None
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=params, config=config)
    return engine


def token_logps(engine, out):
    logits = engine(out.ids).logits[:, out.prompt_len - 1:-1]
    return F.log_softmax(logits.float(), -1)


def main(student="tiny-student", teacher="big-teacher", steps=1000):
    deepspeed.init_distributed()
    tokenizer = AutoTokenizer.from_pretrained(student)
    learner = start(student, STUDENT, True)
    guide = start(teacher, TEACHER, False)
    rollout = EngineRollout(learner, tokenizer)
    for step, (prompts, attention) in zip(range(steps), prompt_loader(tokenizer)):
        out = rollout.sample(prompts.cuda(), attention.cuda())
        with torch.no_grad():
            target = token_logps(guide, out)
        mine = token_logps(learner, out)
        gap = F.kl_div(mine, target, reduction="none", log_target=True).sum(-1)
        loss = (gap * out.mask).sum() / out.mask.sum().clamp(min=1)
        learner.backward(loss)
        learner.step()


if __name__ == "__main__":
    main()
