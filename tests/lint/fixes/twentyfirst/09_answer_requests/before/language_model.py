import torch
import torch.nn.functional as F
from tqdm import tqdm


class ShardedLM:
    def __init__(self, model, tokenizer, accelerator, batch_size=1):
        self.model = accelerator.prepare(model).eval()
        self.tokenizer = tokenizer
        self.accelerator = accelerator
        self.batch_size = batch_size

    @torch.no_grad()
    def loglikelihood(self, args):
        results = []
        for context, target in tqdm(args, disable=not self.accelerator.is_main_process):
            head = self.tokenizer(context).input_ids
            tail = self.tokenizer(target, add_special_tokens=False).input_ids
            ids = torch.tensor([head + tail], device=self.accelerator.device)
            logits = F.log_softmax(self.model(input_ids=ids).logits[0, len(head) - 1 : -1].float(), -1)
            picked = logits.gather(1, ids[0, len(head):, None]).squeeze(1)
            results.append((picked.sum().item(), bool((logits.argmax(1) == ids[0, len(head):]).all())))
        return results

    @torch.no_grad()
    def generate_until(self, args):
        results = []
        for context, options in tqdm(args, disable=not self.accelerator.is_main_process):
            inputs = self.tokenizer(context, return_tensors="pt").to(self.accelerator.device)
            out = self.model.generate(**inputs, max_new_tokens=options["max_tokens"], do_sample=False,
                                      synced_gpus=True)
            text = self.tokenizer.decode(out[0, inputs.input_ids.size(1):])
            for stop in options["until"]:
                text = text.split(stop)[0]
            results.append(text)
        return results
