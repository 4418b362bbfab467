import torch


def get_contrastive_denoising_training_group(targets, num_classes, num_queries, class_embed,
                                             num_denoising=100, label_noise_ratio=0.5, box_noise_scale=1.0):
    if num_denoising <= 0:
        return None, None, None, None

    num_gts = [len(t["labels"]) for t in targets]
    device = targets[0]["labels"].device

    max_gt_num = max(num_gts)
    if max_gt_num == 0:
        return None, None, None, None

    num_group = max(num_denoising // max_gt_num, 1)
    bs = len(num_gts)
    input_query_class = torch.full([bs, max_gt_num], num_classes, dtype=torch.int32, device=device)
    input_query_bbox = torch.zeros([bs, max_gt_num, 4], device=device)
    pad_gt_mask = torch.zeros([bs, max_gt_num], dtype=torch.bool, device=device)
    for i, n in enumerate(num_gts):
        if n > 0:
            input_query_class[i, :n] = targets[i]["labels"]
            input_query_bbox[i, :n] = targets[i]["boxes"]
            pad_gt_mask[i, :n] = 1
    input_query_class = input_query_class.tile([1, 2 * num_group])
    input_query_bbox = input_query_bbox.tile([1, 2 * num_group, 1])
    pad_gt_mask = pad_gt_mask.tile([1, 2 * num_group])

    mask = torch.rand_like(input_query_class, dtype=torch.float) < label_noise_ratio * 0.5
    new_label = torch.randint_like(mask, 0, num_classes, dtype=input_query_class.dtype)
    input_query_class = torch.where(mask & pad_gt_mask, new_label, input_query_class)
    noise = (torch.rand_like(input_query_bbox) - 0.5) * box_noise_scale * input_query_bbox[..., 2:].tile(2)
    input_query_bbox = (input_query_bbox + noise).clip(min=0.0, max=1.0)

    input_query_logits = class_embed(input_query_class)
    dn_len = max_gt_num * 2 * num_group
    attn_mask = torch.zeros([dn_len + num_queries] * 2, dtype=torch.bool, device=device)
    attn_mask[dn_len:, :dn_len] = True
    dn_meta = {"dn_num_group": num_group, "dn_num_split": [dn_len, num_queries], "dn_pad_mask": pad_gt_mask}
    return input_query_logits, input_query_bbox, attn_mask, dn_meta
