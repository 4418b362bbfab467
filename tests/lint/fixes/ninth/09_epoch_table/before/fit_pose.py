import lightning.pytorch as pl
import zmq
from torch.utils.data import DataLoader

from pose_data import PoseFrames
from pose_module import PoseModule
from reporters import EpochTable, SocketReporter


def main(out="runs/pose", address="tcp://127.0.0.1:9001"):
    socket = zmq.Context().socket(zmq.PUB)
    socket.connect(address)
    trainer = pl.Trainer(
        accelerator="gpu", devices=2, strategy="ddp", max_epochs=200, default_root_dir=out,
        callbacks=[EpochTable(f"{out}/log.csv"), SocketReporter(socket, "pose")],
    )
    train = DataLoader(PoseFrames("train"), batch_size=8, shuffle=True, num_workers=4)
    val = DataLoader(PoseFrames("val"), batch_size=8, num_workers=4)
    trainer.fit(PoseModule(), train, val)


if __name__ == "__main__":
    main()
