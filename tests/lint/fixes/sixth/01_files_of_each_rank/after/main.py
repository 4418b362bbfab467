import torch.distributed as dist

from reader import FileReader


def run_epoch(args, files, compute):
    reader = FileReader(files, args.my_rank, args.comm_size, args.batch_size, args.samples_per_file)
    step = 0
    for batch in reader.next():
        compute(batch)
        dist.barrier()
        step += 1
    return step


def main(args, files, compute):
    dist.init_process_group("gloo")
    args.my_rank = dist.get_rank()
    args.comm_size = dist.get_world_size()
    files = files[: len(files) // args.comm_size * args.comm_size]
    for _ in range(args.epochs):
        run_epoch(args, files, compute)
    dist.destroy_process_group()
