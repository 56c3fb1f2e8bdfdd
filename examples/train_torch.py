"""Training with torch: `python examples/train_torch.py [cuda]`. A network of two layers learns a smooth function."""

import sys
from collections.abc import Sequence

import tilewright
import tilewright.torch
import torch


def main(arguments: Sequence[str] = ()) -> None:
    device = torch.device(arguments[0] if arguments else "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    x = torch.rand(64, 8, device=device)
    target = torch.sin(3 * x).sum(1, keepdim=True)

    # As torch.nn.Linear. Each layer multiplies in three shapes: forward, for its weight and for its input.
    layers = tilewright.torch.Linear(8, 32), torch.nn.Tanh(), tilewright.torch.Linear(32, 1)
    network = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for step in range(201):
        loss = torch.nn.functional.mse_loss(network(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3}: loss {loss.item():.5f}")

    # Without a gradient tilewright.matmul does the same; out, alpha and beta are there too.
    with torch.no_grad():
        hidden = torch.tanh(tilewright.matmul(x, network[0].weight.t()) + network[0].bias)
        same = tilewright.matmul(hidden, network[2].weight.t()) + network[2].bias
        print("the same by tilewright.matmul:", torch.allclose(same, network(x)))

    # The network compiles as one graph, without breaks.
    compiled = torch.compile(network, fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")
    print("the same compiled:", torch.allclose(compiled(x), network(x), atol=1e-5))


if __name__ == "__main__":
    main(sys.argv[1:])
