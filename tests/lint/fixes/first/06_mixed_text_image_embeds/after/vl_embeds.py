import torch


def get_input_embeds(model, input_ids, pixel_values=None, pixel_values_videos=None,
                     image_grid_thw=None, video_grid_thw=None):
    inputs_embeds = model.get_input_embeddings()(input_ids)
    if pixel_values is not None:
        image_embeds = model.visual(pixel_values.type(model.visual.dtype), grid_thw=image_grid_thw)
        image_mask = (input_ids == model.config.image_token_id).unsqueeze(-1).expand_as(inputs_embeds)
        inputs_embeds = inputs_embeds.masked_scatter(image_mask, image_embeds.to(inputs_embeds.dtype))

    if pixel_values_videos is not None:
        video_embeds = model.visual(pixel_values_videos.type(model.visual.dtype), grid_thw=video_grid_thw)
        video_mask = (input_ids == model.config.video_token_id).unsqueeze(-1).expand_as(inputs_embeds)
        inputs_embeds = inputs_embeds.masked_scatter(video_mask, video_embeds.to(inputs_embeds.dtype))

    if pixel_values is None and pixel_values_videos is None:
        pixel_values = torch.zeros((16, 1176), dtype=inputs_embeds.dtype, device=inputs_embeds.device)
        image_grid_thw = torch.tensor([[1, 4, 4]], dtype=torch.long, device=inputs_embeds.device)
        image_embeds = model.visual(pixel_values, grid_thw=image_grid_thw)
        inputs_embeds += 0.0 * image_embeds.mean()

    return inputs_embeds
