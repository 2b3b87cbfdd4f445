"""The server's step as one matrix product a block, against the same step as loops over dictionaries of tensors.

    python benchmarks/server.py [--clients 1000]

SPFL's and pFedSim's server rules for 1,000 clients and a LeNet-5 of 62,000 parameters. The loops are what one
writes with state dicts: for every client, for every tensor, a sum over all other clients. They take turns with
the products in one run; the loops are timed on some of the clients and scaled up, for they would take minutes.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedkin import models
from fedkin.layout import Block, Layout
from fedkin.mixing import mix


def loops(matrix: Tensor, rows: list[dict[str, Tensor]], names: list[str], clients: range) -> list[dict[str, Tensor]]:
    """The mixed models of some clients, tensor by tensor."""
    mixed = []
    for i in clients:
        own = {}
        for name in names:
            total = torch.zeros_like(rows[0][name])
            for j, row in enumerate(rows):
                total += matrix[i, j] * row[name]
            own[name] = total
        mixed.append(own)
    return mixed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    n, some = arguments.clients, max(1, arguments.clients // 100)
    layout = Layout(models.build("lenet5-bn", (3, 32, 32), 10))
    rows = torch.randn(n, layout.size)
    matrix = torch.rand(n, n).softmax(1)
    as_dicts = [layout.tensors(row) for row in rows]
    table = Table("server step", "products", "loops", "times faster")
    blocks: dict[str, Block] = {"all columns (SPFL, 1 stage)": layout.all, "extractor (pFedSim)": layout.extractor}
    for what, block in blocks.items():
        names = [name for name in layout.columns if (layout.block([name]) & block).ranges]
        products, loop_times = [], []
        for _ in range(arguments.repeats):
            out = rows.clone()
            begin = time.perf_counter()
            mix(matrix, rows, block, out=out)
            middle = time.perf_counter()
            mixed = loops(matrix, as_dicts, names, range(some))
            end = time.perf_counter()
            products.append(middle - begin)
            loop_times.append((end - middle) * n / some)
            expected = layout.tensors(out[0])
            for name in names:
                torch.testing.assert_close(mixed[0][name], expected[name], rtol=1e-3, atol=1e-4)
        fast, slow = median(products), median(loop_times)
        table.add_row(what, f"{fast:.2f} s", f"{slow:.0f} s", f"{slow / fast:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
