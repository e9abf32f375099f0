# a recurrent network that is sampled from between its steps
import torch
from torch import nn

chars = "abcdefgh "
rnn = nn.LSTM(len(chars), 64, batch_first=True).cuda()
head = nn.Linear(64, len(chars)).cuda()
optimizer = torch.optim.RMSprop([*rnn.parameters(), *head.parameters()])
state = (torch.zeros(1, 4, 64, device="cuda"), torch.zeros(1, 4, 64, device="cuda"))


def sample(n):
    x, s, text = torch.zeros(1, 1, len(chars), device="cuda"), None, ""
    with torch.no_grad():
        for _ in range(n):
            out, s = rnn(x, s)
            choice = torch.multinomial(head(out[0, -1]).softmax(-1), 1).item()
            text += chars[choice]
            x.zero_()
            x[0, 0, choice] = 1
    return text


smooth = None
for i in range(6):
    x = torch.rand(4, 25, len(chars), device="cuda")
    out, state = rnn(x, tuple(s.detach() for s in state))
    loss = nn.functional.cross_entropy(head(out).flatten(0, 1), x.argmax(-1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = loss.item() if smooth is None else smooth * 0.999 + loss.item() * 0.001
    if i % 2 == 0:
        print(f"iter {i}, loss: {smooth:.3f}\n----\n{sample(10)}\n----")
