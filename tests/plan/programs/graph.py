# a graph network: sizes from the graph's own indices
import torch
from torch import nn

edges = torch.randint(0, 20, (2, 60))
batch = torch.arange(20) // 5
net = nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(net.parameters())
edges, batch = edges.cuda(), batch.cuda()
for epoch in range(5):
    x = torch.rand(20, 8, device="cuda")
    loops = edges[0] == edges[1]
    source, goal = edges[:, ~loops]
    h = torch.zeros_like(x).index_add_(0, goal, net(x[source])).relu()
    graphs = int(batch.max()) + 1
    pooled = torch.zeros(graphs, 8, device="cuda").index_add_(0, batch, h)
    assert pooled.shape == (4, 8)
    loss = pooled.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"Epoch: {epoch:03d}, Loss: {float(loss):.4f}")
