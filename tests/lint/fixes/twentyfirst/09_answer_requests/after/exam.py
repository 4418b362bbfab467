import json
import sys

from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from grader import Grader, Task
from language_model import ShardedLM

accelerator = Accelerator()
name = sys.argv[1]
lm = ShardedLM(AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name), accelerator)
boolq = load_dataset("super_glue", "boolq", split="validation").to_list()
gsm = load_dataset("gsm8k", "main", split="test").to_list()
tasks = [
    Task("boolq", boolq, "multiple_choice",
         lambda d: [(f"{d['passage']}\nQuestion: {d['question']}?\nAnswer:", c) for c in (" no", " yes")]),
    Task("gsm8k", gsm, "generate_until",
         lambda d: [(f"Question: {d['question']}\nAnswer:", {"until": ["\n\n"], "max_tokens": 256})]),
]
done = Grader(lm, accelerator).run(tasks)
rows = [(r.task, r.doc_id, r.answers[0]) for items in done.values() for r in items]
rows = gather_object(rows)
if accelerator.is_main_process:
    json.dump(rows, open("answers.json", "w"))
