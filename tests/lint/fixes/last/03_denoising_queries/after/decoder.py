import torch
from torch import nn

from denoising import get_contrastive_denoising_training_group


class RTDETRTransformer(nn.Module):
    def __init__(self, encoder, decoder, hidden_dim=256, num_classes=80, num_queries=300, num_denoising=100):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.num_classes = num_classes
        self.num_queries = num_queries
        self.num_denoising = num_denoising
        self.denoising_class_embed = nn.Embedding(num_classes + 1, hidden_dim, padding_idx=num_classes)
        self.query = nn.Embedding(num_queries, hidden_dim)
        self.query_box = nn.Linear(hidden_dim, 4)

    def forward(self, images, targets=None):
        memory = self.encoder(images)
        target = self.query.weight[None].expand(images.shape[0], -1, -1)
        boxes = self.query_box(target).sigmoid()
        attn_mask, dn_meta = None, None
        if self.training and self.num_denoising > 0:
            dn_query, dn_boxes, attn_mask, dn_meta = get_contrastive_denoising_training_group(
                targets, self.num_classes, self.num_queries, self.denoising_class_embed, self.num_denoising
            )
            if dn_query is not None:
                target = torch.cat([dn_query, target], 1)
                boxes = torch.cat([dn_boxes, boxes], 1)
        logits, boxes = self.decoder(target, boxes, memory, attn_mask=attn_mask)
        return {"pred_logits": logits, "pred_boxes": boxes, "dn_meta": dn_meta}


def train_one_epoch(model, criterion, loader, optimizer, device_id):
    model = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[device_id])
    for images, targets in loader:
        outputs = model(images.cuda(), targets)
        loss = sum(criterion(outputs, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
