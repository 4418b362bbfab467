import torch
import torch.distributed as dist


def _send_with_meta(tensor, dst):
    dist.send_object_list([tuple(tensor.shape)], dst)
    dist.send(tensor, dst)


def _recv_with_meta(src):
    meta = [None]
    dist.recv_object_list(meta, src)
    recv = torch.empty(meta[0], device="cuda")
    dist.recv(recv, src)
    return recv


def communicate(tensor, send_dst, recv_src):
    both = send_dst is not None and recv_src is not None
    if both:
        _send_with_meta(tensor, send_dst)
        return _recv_with_meta(recv_src)
    if send_dst is not None:
        _send_with_meta(tensor, send_dst)
        return None
    return _recv_with_meta(recv_src) if recv_src is not None else None
