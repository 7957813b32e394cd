"""What a device profits from: its precision, compiled functions, and updates captured as CUDA graphs."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch
import torch._functorch.config
from torch import Tensor

from osscl.errors import SpecError

WORTH_COMPILING = 512  # rows of a batch

P = ParamSpec("P")
R = TypeVar("R")


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one; a device that is not there is the user's error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, index = name.partition(":")
    if name not in ("cpu", "cuda") and not (kind == "cuda" and colon and index.isdecimal()):
        raise SpecError(f"unknown device {name!r}; allowed: auto, cpu, cuda, cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= count:
        there = "".join(f", cuda:{i}" for i in range(count))
        raise SpecError(f"device {name!r} is not there: {count} CUDA devices found; allowed: auto, cpu{there}")
    return torch.device(name)


def precision_of(device: torch.device) -> torch.dtype:
    """Of the networks' forward passes; losses are float32 everywhere."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def device_name(device: torch.device) -> str:
    """As records and benchmarks have it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def prepare(device: torch.device) -> None:
    """Let cuDNN try its algorithms on each new shape and keep the fastest; a run has few shapes. Graphs are captured on
    the current device, so that it is made this one."""
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True


def synchronise(device: torch.device) -> None:
    """Wait for the device, so that a clock read after it is true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """On CUDA the function compiled into few kernels (TORCH_COMPILE_DISABLE=1 turns it off), elsewhere as written.

    The first argument is a tensor whose rows are the batch. Small batches are left alone: compiling for their shape
    would cost more than it brings.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance(args[0], Tensor) and worth_compiling(args[0]):
            return _compiled(function)(*args, **kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return call


def worth_compiling(rows: Tensor) -> bool:
    return rows.is_cuda and len(rows) >= (1 if _repaid else WORTH_COMPILING)


_repaid = False  # by so many updates that a graph for a small batch is worth its while


@contextlib.contextmanager
def compiled_for_several_gradients() -> Iterator[None]:
    """Inside the block batches of all sizes are compiled, and one pass may be gone back through more than once.

    As a rule a compiled backward pass may write over what the forward pass kept for it, and torch refuses a second one.
    """
    global _repaid
    before, _repaid = _repaid, True
    try:
        with torch._functorch.config.patch(donated_buffer=False):
            yield
    finally:
        _repaid = before


@functools.cache
def _compiled(function: Callable[..., R]) -> Callable[..., R]:
    torch._dynamo.config.recompile_limit = 64  # a shape a batch size and a mode; more than the default of 8
    return torch.compile(function, dynamic=False)


class Replay:
    """An update that is launched as one CUDA graph; on other devices it is simply called.

    The launches of one update cost the CPU as much time as its kernels take the GPU. Captured once, they are replayed
    as one. Inputs keep their shapes from call to call; the first calls run as written, which also warms up whatever
    compiles or allocates at first use. What comes back is overwritten by the next call.
    """

    def __init__(self, update: Callable[..., Tensor], device: torch.device, calls_before: int = 3) -> None:
        self.update, self.calls_before = update, calls_before
        self.captures = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.output: Tensor | None = None
        self.side = torch.cuda.Stream(device) if self.captures else None  # capturing demands it of the calls before

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not self.captures:
            return self.update(*inputs)
        if self.graph is None and self.calls_before > 0:
            self.calls_before -= 1
            return self._aside(*inputs)
        if self.graph is None:
            self._capture(*inputs)
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given, non_blocking=True)
        assert self.graph is not None and self.output is not None
        self.graph.replay()
        return self.output

    def _aside(self, *inputs: Tensor) -> Tensor:
        assert self.side is not None
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            output = self.update(*inputs)
        torch.cuda.current_stream().wait_stream(self.side)
        return output

    def _capture(self, *inputs: Tensor) -> None:
        self.inputs = tuple(given.clone() for given in inputs)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = self.update(*self.inputs)


class SideBySide:
    """Independent work on streams of its own, so that small kernels share a GPU; elsewhere one after another."""

    def __init__(self, device: torch.device | None) -> None:
        self.device = device if device is not None and device.type == "cuda" else None
        self.streams: list[torch.cuda.Stream] = []

    @contextlib.contextmanager
    def another(self) -> Iterator[None]:
        """Work that may begin with what was done before, and is not waited for."""
        if self.device is None:
            yield
            return
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        self.streams.append(stream)
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        """What comes after this comes after all of it."""
        for stream in self.streams:
            torch.cuda.current_stream(self.device).wait_stream(stream)
