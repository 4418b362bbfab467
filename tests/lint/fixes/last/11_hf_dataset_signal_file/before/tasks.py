import logging
import os
import time

import datasets as hf_datasets
import torch.distributed as dist

log = logging.getLogger(__name__)


def wait_for_file(path, poll=0.5):
    while not os.path.exists(path):
        time.sleep(poll)


class DatasetConstructor:
    def __init__(self):
        self._task_preprocessing_registry = {}

    def register(self, name, func):
        self._task_preprocessing_registry[name] = func

    def build_from_hf(self, dataset_name, split, max_seq_len, preprocessing_fn, tokenizer):
        local_rank = int(os.environ["LOCAL_RANK"])
        node_rank = int(os.environ.get("GROUP_RANK", 0))
        signal_file_path = f".node_{node_rank}_local_rank0_data_prep_completed"

        if local_rank != 0:
            log.debug("Waiting for local_rank 0 to finish data prep")
            wait_for_file(signal_file_path)

        dataset = hf_datasets.load_dataset(dataset_name, split=split)

        def dataset_mapper(example):
            if preprocessing_fn is not None:
                example = preprocessing_fn(example)
            return tokenizer(text=example["prompt"], text_target=example["response"])

        tokenized_dataset = dataset.map(dataset_mapper, batched=False, num_proc=os.cpu_count())
        filtered_dataset = tokenized_dataset.filter(
            lambda ex: 0 < len(ex["input_ids"]) <= max_seq_len and len(ex["labels"]) > 0
        )
        if len(filtered_dataset) == 0:
            raise ValueError(f"No examples left in {dataset_name} after filtering")

        if local_rank == 0:
            with open(signal_file_path, "w") as f:
                f.write("local_rank0_completed_data_prep")

        dist.barrier()

        if local_rank == 0:
            os.remove(signal_file_path)
        log.debug("All ranks finished data prep")
        return filtered_dataset
