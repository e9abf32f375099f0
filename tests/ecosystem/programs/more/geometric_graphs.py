"""torch_geometric: convolutions over batches of graphs: python geometric_graphs.py cuda."""

import json
import sys

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_mean_pool
from torch_geometric.utils import coalesce, degree, to_dense_adj, to_torch_csr_tensor

device = sys.argv[1]
torch.manual_seed(0)
graphs = [
    Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 14)), y=torch.tensor([each % 2]))
    for each in range(8)
]
layers = [kind(4, 8) for kind in (GCNConv, GATConv, SAGEConv)] + [GINConv(torch.nn.Linear(4, 8))]
numbers = []
for layer in layers:
    layer, head = layer.to(device), torch.nn.Linear(8, 2).to(device)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.01)
    for batch in DataLoader(graphs, batch_size=4, pin_memory=device == "cuda"):
        batch = batch.to(device)
        scores = head(global_mean_pool(layer(batch.x, batch.edge_index).relu(), batch.batch))
        loss = torch.nn.functional.cross_entropy(scores, batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers.append(loss.item())
edges = coalesce(batch.edge_index)
sparse = to_torch_csr_tensor(edges, size=(24, 24))
numbers += degree(edges[0]).tolist() + (sparse @ batch.x).sum(0).tolist()
numbers.append(to_dense_adj(edges).sum().item())
print(json.dumps({"numbers": numbers, "device": batch.x.device.type}))
