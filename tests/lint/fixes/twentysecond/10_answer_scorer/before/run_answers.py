import argparse
import copy
import logging
import os

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from transformers import BertConfig, BertTokenizer

from answer_model import AnswerModel, QuestionSet

logger = logging.getLogger(__name__)


def score_answers(logits, labels):
    picked = logits.argmax(dim=1, keepdim=True)
    return labels.gather(1, picked).sum()


@torch.no_grad()
def evaluate(args, model, dataset):
    model.eval()
    loader = DataLoader(dataset, 128, sampler=SequentialSampler(dataset))
    score = 0.0
    for batch in loader:
        batch = [t.to(args.device) for t in batch]
        _, logits = model(*batch)
        score += score_answers(logits, batch[-1]).item()
    model.train()
    return score / len(dataset)


def train(args, train_set, eval_set, model, tokenizer):
    sampler = RandomSampler(train_set) if args.local_rank == -1 else DistributedSampler(train_set)
    loader = DataLoader(train_set, args.train_batch_size, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    net = model
    if args.local_rank != -1:
        net = DistributedDataParallel(model, device_ids=[args.local_rank], find_unused_parameters=True)

    global_step, best_score, best_weights = 0, 0.0, None
    net.train()
    for epoch in range(args.num_train_epochs):
        if args.local_rank != -1:
            sampler.set_epoch(epoch)
        for batch in loader:
            loss, _ = net(*[t.to(args.device) for t in batch])
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            net.zero_grad()
            global_step += 1

            if args.local_rank in [-1, 0] and args.logging_steps > 0 and global_step % args.logging_steps == 0:
                if args.local_rank not in [-1, 0]:
                    torch.distributed.barrier()

                if args.local_rank in [-1, 0] and args.evaluate_during_training:
                    score = evaluate(args, model, eval_set)
                    if score > best_score:
                        best_score = score
                        best_weights = copy.deepcopy(model.state_dict())
                    logger.info("step %d: score %.3f, best %.3f", global_step, 100 * score, 100 * best_score)

                if args.local_rank == 0:
                    torch.distributed.barrier()

    if args.local_rank in [-1, 0]:
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(best_weights or model.state_dict(), os.path.join(args.output_dir, "best.pt"))
        tokenizer.save_pretrained(args.output_dir)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--model_name_or_path", default="bert-base-uncased")
    parser.add_argument("--train_batch_size", type=int, default=32)
    parser.add_argument("--num_train_epochs", type=int, default=25)
    parser.add_argument("--logging_steps", type=int, default=4000)
    parser.add_argument("--evaluate_during_training", action="store_true")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
    args = parser.parse_args()

    if args.local_rank == -1:
        args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        torch.cuda.set_device(args.local_rank)
        args.device = torch.device("cuda", args.local_rank)
        torch.distributed.init_process_group("nccl")
    logging.basicConfig(level=logging.INFO if args.local_rank in [-1, 0] else logging.WARN)

    tokenizer = BertTokenizer.from_pretrained(args.model_name_or_path)
    train_set = QuestionSet(os.path.join(args.data_dir, "train.json"), tokenizer)
    eval_set = QuestionSet(os.path.join(args.data_dir, "val.json"), tokenizer)
    config = BertConfig.from_pretrained(args.model_name_or_path)
    model = AnswerModel(config, num_answers=train_set.num_answers).to(args.device)
    train(args, train_set, eval_set, model, tokenizer)


if __name__ == "__main__":
    main()
