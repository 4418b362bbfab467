import torch
from PIL import Image
from torchvision import transforms
from transformers import AutoImageProcessor, AutoModelForImageClassification


class PictureScreen:
    def __init__(self, name, device, threshold=0.85):
        self.processor = AutoImageProcessor.from_pretrained(name)
        self.model = AutoModelForImageClassification.from_pretrained(name).to(device).eval()
        self.device, self.threshold = device, threshold

    @torch.no_grad()
    def rejects(self, path):
        picture = Image.open(path).convert("RGB")
        inputs = self.processor(picture, return_tensors="pt").to(self.device)
        return self.model(**inputs).logits.softmax(-1)[0, 1].item() > self.threshold


def loader_for(size):
    tf = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor()])
    return lambda path: tf(Image.open(path).convert("RGB"))


def make_batches(paths, batch_size, load):
    for i in range(0, len(paths), batch_size):
        yield torch.stack([load(p) for p in paths[i:i + batch_size]])
