"""transformers' Trainer with a tiny GPT-2: python transformers_trainer.py cuda fp16."""

import json
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

device, precision = sys.argv[1:3]
torch.manual_seed(0)
samples = [{"input_ids": words, "labels": words} for words in torch.randint(64, (32, 16))]
gpt2 = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
        attn_pdrop=0,  # dropout's random numbers are a card's own
        embd_pdrop=0,
        resid_pdrop=0,
    )
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=device == "cpu",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=True,
        fp16=precision == "fp16",
        bf16=precision == "bf16",
    )
    trainer = Trainer(gpt2, arguments, train_dataset=samples, eval_dataset=samples)
    trainer.train()
    before = trainer.evaluate()["eval_loss"]
    trainer.train(resume_from_checkpoint=True)
    history = trainer.state.log_history
print(
    json.dumps(
        {
            "losses": [entry["loss"] for entry in history if "loss" in entry],
            "eval_loss": before,
            "device": str(next(gpt2.parameters()).device),
            "gpus": arguments.n_gpu,
            "scaler": trainer.accelerator.scaler is not None,
        }
    )
)
