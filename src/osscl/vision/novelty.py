"""What is novel to a network, after Generalized ODIN: scores of perturbed images, and where to cut them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from osscl.vision.encoder import Deconfident

STRENGTHS = (0.0025, 0.005, 0.001, 0.002, 0.004, 0.08)  # DistillMatch's candidates for the perturbation
AT_ONCE = 256  # images; fewer than would be compiled


def novelty_scores(net: Deconfident, images: Tensor, epsilon: float) -> Tensor:
    """The highest h_k of each image, (n,), after a small move that raises it: images of classes met gain more."""
    parts = [_scores(net, chunk, epsilon) for chunk in images.split(AT_ONCE)]
    return torch.cat(parts) if parts else torch.empty(0, device=images.device)


def _scores(net: Deconfident, images: Tensor, epsilon: float) -> Tensor:
    x = (images.float() / 255).requires_grad_(epsilon > 0)
    with torch.set_grad_enabled(epsilon > 0):
        best = net.scores(net.features(x)).max(1).values
    if epsilon == 0:
        return best
    uphill = torch.autograd.grad(best.sum(), x)[0].sign()
    with torch.no_grad():
        moved = x + epsilon * torch.as_tensor(net.std) * uphill  # epsilon is in units of the normalised image
        return net.scores(net.features(moved)).max(1).values


def calibrated(
    net: Deconfident, images: Tensor, share: float, *, highest: bool = True, strengths: Sequence[float] = STRENGTHS
) -> tuple[float, float]:
    """The perturbation, and the score that a `share` of held-out images of classes met passes; inf where there is none.

    Generalized ODIN takes the perturbation with the highest mean score; DistillMatch's code takes the lowest, and half.
    """
    if not len(images):
        return 0.0, torch.inf
    means = {epsilon: float(novelty_scores(net, images, epsilon).mean()) for epsilon in strengths}
    epsilon = (max if highest else min)(means, key=lambda e: means[e]) / 2
    return epsilon, float(novelty_scores(net, images, epsilon).quantile(1 - share))
