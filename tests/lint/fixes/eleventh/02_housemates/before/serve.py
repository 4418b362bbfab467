import torch.distributed as dist

from mailbox import Mailbox


def main():
    dist.init_process_group("gloo")
    group = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
    mailbox = Mailbox(group)
    if dist.get_rank() == 0:
        print(mailbox.describe())
    for turn in range(4):
        items = mailbox.hand_out([f"request-{turn}"] if dist.get_rank() == 0 else None)
        assert items
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
