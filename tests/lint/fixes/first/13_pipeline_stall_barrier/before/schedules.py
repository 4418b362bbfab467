import torch
import torch.distributed as dist

import parallel_state as mpu
from p2p import recv_backward, recv_forward, send_backward, send_forward


def forward_step(model, data_iterator, input_tensor, losses):
    batch = next(data_iterator)
    output = model(batch, input_tensor)
    if mpu.is_last_stage():
        losses.append(output.detach())
    return output


def backward_step(optimizer, input_tensor, output_tensor, output_grad):
    torch.autograd.backward(output_tensor, grad_tensors=output_grad)
    return None if input_tensor is None else input_tensor.grad


def forward_backward_pipelining(model, data_iterator, optimizer, timers, num_microbatches):
    num_warmup = min(mpu.world_size() - mpu.rank() - 1, num_microbatches)
    num_remaining = num_microbatches - num_warmup
    inputs, outputs, losses = [], [], []

    for i in range(num_warmup):
        input_tensor = recv_forward(timers)
        output_tensor = forward_step(model, data_iterator, input_tensor, losses)
        if i == num_warmup - 1:
            timers("forward-pipeline-stall").start()
            dist.barrier(group=mpu.group())
            timers("forward-pipeline-stall").stop()
        send_forward(output_tensor, timers)
        inputs.append(input_tensor)
        outputs.append(output_tensor)

    if num_warmup == 0:
        timers("forward-pipeline-stall").start()
        dist.barrier(group=mpu.group())
        timers("forward-pipeline-stall").stop()

    for _ in range(num_remaining):
        input_tensor = recv_forward(timers)
        output_tensor = forward_step(model, data_iterator, input_tensor, losses)
        send_forward(output_tensor, timers)
        inputs.append(input_tensor)
        outputs.append(output_tensor)
        grad = backward_step(optimizer, inputs[0], outputs[0], recv_backward(timers))
        send_backward(grad, timers)
        inputs.pop(0), outputs.pop(0)

    while inputs:
        grad = backward_step(optimizer, inputs.pop(0), outputs.pop(0), recv_backward(timers))
        send_backward(grad, timers)
    return losses
