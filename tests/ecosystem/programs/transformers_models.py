"""GPT-2 and BERT, tiny, from their configurations: python transformers_models.py cuda."""

import json
import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

device = sys.argv[1]
torch.manual_seed(0)
WORDS = 64
gpt2 = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=WORDS,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
    )
).to(device)
bert = BertForSequenceClassification(
    BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=3,
    )
).to(device)
words = torch.randint(WORDS, (4, 16)).to(device)
mask = (torch.arange(16).expand(4, 16) < torch.tensor([[16], [12], [9], [4]])).long().to(device)
label = torch.tensor([0, 1, 2, 0]).to(device)
gpt2.eval(), bert.eval()  # without dropout, whose random numbers are a card's own


def train(network, **batch):
    """The losses of a few steps, and what is left of the gradient."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = network(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def loss(network):
    """The loss of GPT-2, wherever its layers are."""
    return network(input_ids=words, labels=words).loss.item()


said = {
    "gpt2": train(gpt2, input_ids=words, labels=words),
    "bert": train(bert, input_ids=words, attention_mask=mask, labels=label),
}
gpt2.gradient_checkpointing_enable()
gpt2.train()
for module in gpt2.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
said["checkpointed"] = train(gpt2, input_ids=words, labels=words, use_cache=False)
gpt2.gradient_checkpointing_disable()
gpt2.eval()

prompt = {"input_ids": words[:, :4], "attention_mask": torch.ones_like(words[:, :4])}
for name, how in {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static cache": {"cache_implementation": "static"},
}.items():
    written = gpt2.generate(**prompt, max_new_tokens=6, do_sample=False, pad_token_id=0, **how)
    assert written.device.type == device
    said[name] = written.tolist()
gpt2.generate(**prompt, max_new_tokens=6, do_sample=True, top_k=5, top_p=0.9, pad_token_id=0)

with tempfile.TemporaryDirectory() as folder:
    gpt2.save_pretrained(folder)
    said["before"] = loss(gpt2)
    one = {"": "cuda:0" if device == "cuda" else "cpu"}
    said["again"] = loss(GPT2LMHeadModel.from_pretrained(folder, device_map=one))
    if device == "cuda":
        for name, room in {
            "over two": {0: "60KB", 1: "2GB"},
            "and the host": {0: "60KB", 1: "60KB", "cpu": "1GB"},
        }.items():
            spread = GPT2LMHeadModel.from_pretrained(folder, device_map="auto", max_memory=room)
            said[name] = loss(spread)
            said[f"{name}: where"] = sorted({str(place) for place in spread.hf_device_map.values()})
said["devices"] = sorted({str(it.device) for net in (gpt2, bert) for it in net.parameters()})
print(json.dumps(said))
