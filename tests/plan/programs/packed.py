# sequences of different lengths, packed
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

rnn, head = nn.GRU(16, 32, batch_first=True).cuda(), nn.Linear(32, 5).cuda()
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()])
for _ in range(4):
    lengths = torch.tensor([9, 7, 4])
    x = pad_sequence([torch.rand(n, 16) for n in lengths], batch_first=True).cuda()
    packed = pack_padded_sequence(x, lengths.cuda().cpu(), batch_first=True)
    out, sizes = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    assert out.shape == (3, 9, 32), out.shape
    loss = head(out[torch.arange(3), sizes - 1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
