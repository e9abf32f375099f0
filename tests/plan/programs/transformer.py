# a Transformer with padding, whose encoder looks at the mask
import torch
from torch import nn

embed = nn.Embedding(50, 32, padding_idx=0).cuda()
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
encoder, head = nn.TransformerEncoder(layer, 2).cuda(), nn.Linear(32, 2).cuda()
parameters = [*embed.parameters(), *encoder.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters)
for step in range(4):
    tokens = torch.randint(1, 50, (8, 12))
    tokens[:, 9:] = 0
    tokens = tokens.cuda()
    padding = tokens == 0
    if padding.all():
        continue
    out = encoder(embed(tokens), src_key_padding_mask=padding)
    pooled = (out * ~padding[..., None]).sum(1) / (~padding).sum(1, keepdim=True)
    loss = head(pooled).logsumexp(1).mean() + out[~padding].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    encoder.eval()
    with torch.no_grad():
        encoder(embed(tokens), src_key_padding_mask=padding)
    encoder.train()
