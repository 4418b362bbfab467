import torch


class RNNTJoint(torch.nn.Module):
    def __init__(self, joint_net, loss, wer, fused_batch_size):
        super().__init__()
        self.joint_net = joint_net
        self.loss = loss
        self.wer = wer
        self.fused_batch_size = fused_batch_size

    def joint(self, enc, dec):
        return self.joint_net(enc.unsqueeze(2) + dec.unsqueeze(1))

    def forward(self, enc, dec, enc_lens, targets, target_lens, compute_wer):
        losses, nums, denoms = [], [], []
        for begin in range(0, enc.size(0), self.fused_batch_size):
            part = slice(begin, begin + self.fused_batch_size)
            sub_enc, sub_lens = enc[part], enc_lens[part]
            sub_targets, sub_target_lens = targets[part], target_lens[part]
            logits = self.joint(sub_enc, dec[part])
            losses.append(self.loss(logits, sub_targets, sub_lens, sub_target_lens))
            if compute_wer:
                self.wer.update(sub_enc.detach(), sub_lens, sub_targets, sub_target_lens)
                _, num, denom = self.wer.compute()
                self.wer.reset()
                nums.append(num)
                denoms.append(denom)
        wer = None
        if compute_wer:
            wer = torch.stack(nums).sum() / torch.stack(denoms).sum()
        return torch.cat(losses).mean(), wer
