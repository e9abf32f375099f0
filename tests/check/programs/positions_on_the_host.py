import torch
import torch.nn as nn

class TinyGPT(nn.Module):
    def __init__(self, vocab=1024, width=256, length=128):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        b, t = ids.shape
        pos = torch.arange(t)  # bad
        pos = torch.arange(t, device=ids.device)  # good
        x = self.tokens(ids) + self.positions(pos)  # bad: device-error
        x = self.tokens(ids) + self.positions(pos)  # good
        return self.head(self.block(x))

def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = TinyGPT().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = torch.randint(0, 1024, (64, 129), device=device)
    for step in range(200):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(data[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()

if __name__ == "__main__":
    main()
