"""Work on a GPU recorded once for each shape of its inputs and played back: no time is lost between its small pieces.

Compiling makes faster pieces but takes many seconds for every shape; recording takes a moment. So where the problems
of training have several lengths, steps are recorded.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM = 2


class Replay:
    """`work` takes tensors and changes those of `state` in place; the next call overwrites what it returns."""

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], state: Sequence[dict[str, Tensor]]) -> None:
        self.work, self.state = work, state
        self.recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor, ...]]] = {}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        shape = tuple(tensor.shape for tensor in inputs)
        if shape not in self.recorded:
            self.recorded[shape] = self._record(inputs)
        graph, own, results = self.recorded[shape]
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return results

    def _record(self, inputs: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor, ...]]:
        own, changed = [tensor.clone() for tensor in inputs], [t for table in self.state for t in table.values()]
        before = [tensor.detach().clone() for tensor in changed]
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM):  # whatever is set up at first use is not part of the record
                self.work(*own)
        torch.cuda.current_stream().wait_stream(beside)
        with torch.no_grad():
            for tensor, kept in zip(changed, before, strict=True):
                tensor.copy_(kept)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.work(*own)
        return graph, own, results
