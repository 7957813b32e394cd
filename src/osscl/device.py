"""Devices: choosing one, its precision, compiled functions, and updates captured as CUDA graphs."""

import contextlib
import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch
import torch._functorch.config
from torch import Tensor

from osscl.config import flat, plain
from osscl.errors import OutOfMemory, SpecError, lacks_memory
from osscl.text import counted

WORTH_COMPILING = 512  # rows of a batch
CALLS_BEFORE_CAPTURE = 3  # of an update, run as written, before it is captured as a CUDA graph

P = ParamSpec("P")
R = TypeVar("R")


def pick_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, index = name.partition(":")
    if name not in ("cpu", "cuda") and not (kind == "cuda" and colon and index.isdecimal()):
        raise SpecError(f"unknown device {name!r}; allowed: auto, cpu, cuda, cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= count:
        there = "".join(f", cuda:{i}" for i in range(count))
        found = counted(count, "CUDA device")
        raise SpecError(f"device {name!r} does not exist: {found} found; allowed: auto, cpu{there}")
    return torch.device(name)


def precision_of(device: torch.device) -> torch.dtype:
    """Precision of forward passes; losses are float32 everywhere."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def device_name(device: torch.device) -> str:
    """The name that records and benchmarks show."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def prepare(device: torch.device) -> None:
    """Make `device` current, as graph capture requires, and let cuDNN pick the fastest algorithms."""
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True


def synchronise(device: torch.device) -> None:
    """Wait for the device, so that a clock read afterwards is meaningful."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block; other threads of this process keep their setting."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def naming_batches(config: object) -> Iterator[None]:
    """If memory runs out inside the block, raise OutOfMemory with the batch sizes of a method's config."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's are RuntimeErrors, on a GPU and elsewhere
        if not lacks_memory(error):
            raise
        now, half = ([f"{name}={size // part}" for name, size in _batches_of(config).items()] for part in (1, 2))
        instead = f", or start over with smaller batches: {' '.join(f'--set {one}' for one in half)}" if half else ""
        raise OutOfMemory(
            f"out of memory{' with ' * bool(now)}{', '.join(now)}; the saved state is intact, so repeat the command "
            f"when more memory is free{instead}"
        ) from error


def _batches_of(config: object) -> dict[str, int]:
    """The fields that hold the size of a training batch; a head is small, and not every method trains a reference."""
    trains_reference = getattr(config, "needs_reference", True)
    return {
        name: size
        for name, size in flat(plain(config)).items()
        if name.endswith("batch") and isinstance(size, int) and size > 1
        and not name.startswith("head.") and (trains_reference or not name.startswith("reference."))
    }  # fmt: skip


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function on CUDA (TORCH_COMPILE_DISABLE=1 turns it off); elsewhere it runs as written.

    The first argument is a tensor whose rows are the batch. Small batches are not compiled: that would cost more
    time than it saves.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance(args[0], Tensor) and worth_compiling(args[0]):
            return _compiled(function)(*args, **kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return call


def worth_compiling(rows: Tensor) -> bool:
    return rows.is_cuda and len(rows) >= (1 if _compile_small else WORTH_COMPILING)


_compile_small = False  # set where enough updates follow for small batches to be worth compiling, too


@contextlib.contextmanager
def compiled_for_several_gradients() -> Iterator[None]:
    """Inside the block batches of all sizes are compiled, and one forward pass allows several backward passes.

    By default a compiled backward pass may overwrite the buffers of its forward pass, and torch refuses a second one.
    """
    global _compile_small
    before, _compile_small = _compile_small, True
    try:
        with torch._functorch.config.patch(donated_buffer=False):
            yield
    finally:
        _compile_small = before


@functools.cache
def _compiled(function: Callable[..., R]) -> Callable[..., R]:
    torch._dynamo.config.recompile_limit = 64  # one per batch size and mode; the default is 8
    return torch.compile(function, dynamic=False)


class Replay:
    """An update that runs as one CUDA graph; on other devices it is called unchanged.

    Launching the kernels of one update takes the CPU as long as running them takes the GPU. Captured once, they are
    replayed as one. Inputs must keep their shapes; the first calls run as written, which also warms up everything that
    compiles or allocates at first use. The output is overwritten by the next call.
    """

    def __init__(self, update: Callable[..., Tensor], device: torch.device) -> None:
        self.update, self.calls_before = update, CALLS_BEFORE_CAPTURE
        self.captures = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.output: Tensor | None = None
        # Graph capture requires a separate stream for the calls before it.
        self.side = torch.cuda.Stream(device) if self.captures else None

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
        gc.collect()  # a capture fails if the garbage collector frees an earlier graph meanwhile
        with torch.cuda.graph(self.graph):
            self.output = self.update(*self.inputs)


class SideBySide:
    """Independent work on separate CUDA streams, so that small kernels share a GPU; elsewhere sequential."""

    def __init__(self, device: torch.device | None) -> None:
        self.device = device if device is not None and device.type == "cuda" else None
        self.streams: list[torch.cuda.Stream] = []

    @contextlib.contextmanager
    def another(self) -> Iterator[None]:
        """Run the block on a new stream, after the work that was queued before it."""
        if self.device is None:
            yield
            return
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        self.streams.append(stream)
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        """Wait for all streams."""
        for stream in self.streams:
            torch.cuda.current_stream(self.device).wait_stream(stream)
