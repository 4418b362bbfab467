from lhotse import load_manifest_lazy
from lhotse.dataset import DynamicBucketingSampler
from torch.utils.data import DataLoader

from dataset import SpeechSynthesisDataset


class TtsDataModule:
    def __init__(self, args):
        self.args = args

    def train_dataloaders(self):
        cuts = load_manifest_lazy(self.args.manifest_dir / "cuts_train.jsonl.gz")
        sampler = DynamicBucketingSampler(
            cuts,
            max_duration=self.args.max_duration,
            shuffle=self.args.shuffle,
            num_buckets=self.args.num_buckets,
            drop_last=self.args.drop_last,
        )
        return DataLoader(
            SpeechSynthesisDataset(), sampler=sampler, batch_size=None, num_workers=self.args.num_workers
        )
