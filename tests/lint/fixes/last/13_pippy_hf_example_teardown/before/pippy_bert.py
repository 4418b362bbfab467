import argparse
import os

import torch
import torch.distributed as dist
from pippy import pipeline
from pippy.PipelineStage import PipelineStage
from pippy.PipelineSchedule import ScheduleGPipe
from pippy.SplitPoint import SplitPoint
from transformers import BertConfig, BertModel


def add_split_points(bert, nranks):
    layers_per_rank = bert.config.num_hidden_layers // nranks
    return {f"encoder.layer.{i * layers_per_rank}": SplitPoint.BEGINNING for i in range(1, nranks)}


def generate_inputs(batch_size, seq_length, vocab_size, device):
    return {"input_ids": torch.randint(0, vocab_size, (batch_size, seq_length), device=device)}


def run(args):
    config = BertConfig()
    bert = BertModel(config).to(args.device)
    bert.eval()
    example = generate_inputs(args.batch_size, 512, config.vocab_size, args.device)
    bert_pipe = pipeline(bert, args.chunks, example_kwargs=example, split_spec=add_split_points(bert, args.world_size))
    assert bert_pipe.num_stages == args.world_size
    stage = PipelineStage(bert_pipe, args.rank, device=args.device)
    schedule = ScheduleGPipe(stage, args.chunks)

    if args.rank == 0:
        schedule.step(**example)
    elif args.rank == args.world_size - 1:
        out = schedule.step()
        print(out.shape if torch.is_tensor(out) else type(out))
    else:
        schedule.step()

    dist.destroy_process_group()
    print(f"Rank {args.rank} completes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=4)
    args = parser.parse_args()
    args.rank = int(os.environ["RANK"])
    args.world_size = int(os.environ["WORLD_SIZE"])
    args.device = torch.device("cuda", args.rank % torch.cuda.device_count())
    dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
    run(args)
