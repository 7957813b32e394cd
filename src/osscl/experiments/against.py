"""What a user would write otherwise: loader workers that make views on the CPU, feeding a plain training loop."""

import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from osscl.device import synchronise
from osscl.experiments.bench import CIFAR, BenchSpec
from osscl.losses.contrastive import nt_xent
from osscl.stream.randomness import seeded
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import new_encoder


def against(spec: BenchSpec, device: torch.device) -> dict[str, float]:
    """Views a second of the loader alone and of training from it, in float32 and, on a GPU, in bf16 autocast."""
    name, view = user_transform()
    workers = max(1, (os.cpu_count() or 2) - 1)
    pairs = TwoViews(spec.pool, view)
    loader: DataLoader[Any] = DataLoader(
        pairs, spec.batch, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    found = {f"{name}, {workers} workers, loader alone": _rate(loader, spec, lambda x: None, device)}
    precisions = [torch.float32] + ([torch.bfloat16] if device.type == "cuda" else [])
    for precision in precisions:
        update = plain_update(spec, device, precision)
        words = str(precision).removeprefix("torch.")
        found[f"{name}, {workers} workers, training in {words}"] = _rate(loader, spec, update, device)
    kornia = kornia_views() if device.type == "cpu" else None
    if kornia is not None:
        found["kornia's augmentation alone"] = _batch_rate(kornia, spec)
    return found


def kornia_views() -> Callable[[Tensor], Tensor] | None:
    """The same views a batch at a time, by kornia where it is installed."""
    try:
        from kornia import augmentation as kornia
    except ImportError:
        return None
    return kornia.AugmentationSequential(  # type: ignore[no-any-return]
        kornia.RandomResizedCrop((32, 32), scale=(0.2, 1.0)),
        kornia.RandomHorizontalFlip(),
        kornia.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        kornia.RandomGrayscale(p=0.2),
    )


def user_transform() -> tuple[str, Callable[[Image.Image], Tensor]]:
    """torchvision's transforms where it imports, else the same by Pillow."""
    try:
        from torchvision import transforms as tv  # the one place where it may be touched
    except Exception:  # a torchvision that does not fit its torch fails in many ways
        return "Pillow", pillow_view
    steps = [
        tv.RandomResizedCrop(32, scale=(0.2, 1.0)),
        tv.RandomHorizontalFlip(),
        tv.RandomApply([tv.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        tv.RandomGrayscale(0.2),
        tv.ToTensor(),
    ]
    return "torchvision", tv.Compose(steps)


def pillow_view(image: Image.Image, spec: Augmentation = Augmentation()) -> Tensor:
    """One view by Pillow, an image at a time."""
    rng = np.random.default_rng()
    size = image.width
    side = max(1, round(size * float(np.sqrt(rng.uniform(*spec.scale)))))
    left, top = (int(rng.integers(0, size - side + 1)) for _ in range(2))
    view = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    if rng.random() < spec.flip:
        view = ImageOps.mirror(view)
    if rng.random() < spec.jitter:
        view = _jittered(view, spec, rng)
    if rng.random() < spec.grey:
        view = view.convert("L").convert("RGB")
    return torch.from_numpy(np.array(view)).permute(2, 0, 1).float() / 255


def _jittered(view: Image.Image, spec: Augmentation, rng: np.random.Generator) -> Image.Image:
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    strengths = (spec.brightness, spec.contrast, spec.saturation)
    for i in rng.permutation(3):
        view = kinds[i](view).enhance(rng.uniform(1 - strengths[i], 1 + strengths[i]))
    hue, *others = view.convert("HSV").split()
    turn = round(255 * rng.uniform(-spec.hue, spec.hue))
    return Image.merge("HSV", (hue.point(lambda v: (v + turn) % 256), *others)).convert("RGB")


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Random images, each in two views."""

    def __init__(self, n: int, view: Callable[[Image.Image], Tensor]) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        self.images, self.view = [Image.fromarray(row) for row in pixels], view

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.view(self.images[i]), self.view(self.images[i])


def plain_update(spec: BenchSpec, device: torch.device, precision: torch.dtype) -> Callable[[Tensor], None]:
    """Forward, loss, backward, Adam: nothing compiled, nothing captured, memory as it comes."""
    net = new_encoder(spec.net, CIFAR, seeded(0, "against"), device, precision).learning(True)
    net = net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)

    def update(x: Tensor) -> None:
        x = ((x - net.mean) / net.std).contiguous()
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            z = net.projector(net.backbone(x))
        loss = nt_xent(torch.nn.functional.normalize(z.float(), dim=1), 0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return update


def _batch_rate(views: Callable[[Tensor], Tensor], spec: BenchSpec) -> float:
    """Views a second of a function of a whole batch; the first pass warms up."""
    x, times = torch.rand(2 * spec.batch, 3, 32, 32, generator=seeded(0, "against")), []
    for _ in range(1 + spec.repeats):
        began = time.perf_counter()
        views(x)
        times.append(time.perf_counter() - began)
    return len(x) / statistics.median(times[1:])


def _rate(loader: "DataLoader[Any]", spec: BenchSpec, use: Callable[[Tensor], None], device: torch.device) -> float:
    """Views a second over stretches of updates; the first warms up."""
    times = []
    for turn in range(3):
        began, batches = time.perf_counter(), 0
        for first, second in itertools.islice(loader, spec.updates):
            use(torch.cat((first, second)).to(device, non_blocking=True))
            batches += 1
        synchronise(device)
        if turn:
            times.append((time.perf_counter() - began) / max(1, batches))
    return 2 * spec.batch / statistics.median(times)
