import torch.distributed as dist
import torchvision
import torchvision.transforms as transforms


def load_cifar10(root="./data"):
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
    )
    if dist.get_rank() == 0:
        torchvision.datasets.CIFAR10(root=root, train=True, download=True)
        print("CIFAR-10 dataset ready")
    else:
        print(f"rank {dist.get_rank()}: waiting for the download")
    dist.barrier()
    return torchvision.datasets.CIFAR10(root=root, train=True, download=False, transform=transform)
