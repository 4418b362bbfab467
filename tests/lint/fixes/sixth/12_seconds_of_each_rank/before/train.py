from transformers import Trainer

from callback import StopAfterSeconds


def main(model, args, dataset):
    trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[StopAfterSeconds(600)])
    trainer.train()
