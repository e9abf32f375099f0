"""peft: LoRA on a tiny GPT-2, saved, loaded, merged: python peft_lora.py cuda."""

import json
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

device = sys.argv[1]
shape = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)


def fresh():
    torch.manual_seed(0)
    return GPT2LMHeadModel(shape).eval()


adapted = get_peft_model(
    fresh(), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], fan_in_fan_out=True)
)
adapted.to(device)
words = torch.randint(64, (4, 16)).to(device)
optimizer = torch.optim.AdamW(adapted.parameters(), lr=1e-2)
numbers = []
for _ in range(4):
    loss = adapted(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    numbers.append(loss.item())
with tempfile.TemporaryDirectory() as folder:
    adapted.save_pretrained(folder)
    again = PeftModel.from_pretrained(fresh().to(device), folder)
numbers.append(again(input_ids=words, labels=words).loss.item())
merged = again.merge_and_unload()
numbers.append(merged(input_ids=words, labels=words).loss.item())
print(json.dumps({"numbers": numbers, "device": next(merged.parameters()).device.type}))
