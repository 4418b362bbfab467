import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling

from load import Settings, make_accelerator, make_dataset, make_model


def main():
    settings = Settings()
    accelerator = make_accelerator(settings)
    tokenizer, model = make_model(accelerator, settings)
    data = make_dataset(accelerator, settings, tokenizer)
    loader = DataLoader(
        data,
        batch_size=settings.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if step % 50 == 0:
            accelerator.print(step, loss.item())

    accelerator.wait_for_everyone()
    state = accelerator.get_state_dict(model)
    accelerator.unwrap_model(model).save_pretrained(
        "out", is_main_process=accelerator.is_main_process, state_dict=state
    )


if __name__ == "__main__":
    main()
