"""What stays of labels whose images are gone: the mean of each class's features, and how features spread about it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from osscl.learn.balance import class_sums

STIFFNESS = 0.1  # the guess that nothing has moved weighs so many rows, in every direction


@dataclass(frozen=True)
class Past:
    """Rows that are not there, class by class: how many, where, how spread. A regression takes them as if they were.

    They are taken to lie about the mean of all labels of their class. Images at hand had their share in that mean and
    count once more as themselves: a hold on where images really are, the firmer the more of them there are.
    """

    rows: Tensor  # (k,)
    means: Tensor  # (k, d)
    spread: Tensor  # (d, d)


@dataclass(frozen=True)
class Carried:
    """All labels of the first k classes met, in the space of one head: sums alone, no image."""

    labels: Tensor  # (k,) labelled images behind each mean
    means: Tensor  # (k, d)
    spread: Tensor  # (d, d) covariance within a class, all classes weighing the same

    def moved(self, before: Tensor, after: Tensor) -> "Carried":
        """Where the network has moved to: by the linear map that takes unlabelled rows (m, d) from `before` to `after`.

        Semantic Drift Compensation (Yu et al., CVPR 2020) moves prototypes by what current rows show. Deviation: one
        map, near the identity, is fitted to rows without labels, and the spread is moved with the means.
        """
        before, after = before.double(), after.double()
        start, end = before.mean(0), after.mean(0)
        x = before - start
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        turn = identity + torch.linalg.solve(x.T @ x + STIFFNESS * identity, x.T @ (after - end - x))
        return Carried(self.labels, (self.means - start) @ turn + end, turn.T @ self.spread @ turn)

    def joined(self, x: Tensor, columns: Tensor, copies: int) -> "Carried":
        """With further labelled images of these classes: rows x (n * copies, d), copy after copy, of `columns` (n,)."""
        k = len(self.labels)
        labels = self.labels + torch.bincount(columns, minlength=k)
        sums = class_sums(x, columns.repeat(copies), k) / copies
        means = (self.labels[:, None] * self.means + sums) / labels.clamp(min=1)[:, None]
        return Carried(labels, means, self.spread)

    def beside(self, images: Tensor, copies: int) -> Past:
        """What is missing where `images` (k',) of each class are at hand, each as so many rows; k' counts new ones."""
        k, new = len(self.labels), len(images) - len(self.labels)
        missing = (self.labels - images[:k]).clamp(min=0) * copies
        rows, means = missing.new_zeros(new), self.means.new_zeros(new, self.means.shape[1])
        return Past(torch.cat((missing, rows)).to(means.dtype), torch.cat((self.means, means)), self.spread)


def no_past(x: Tensor, k: int) -> Past:
    """Nothing but the rows `x` (n, d) of k classes."""
    d = x.shape[1]
    return Past(x.new_zeros(k), x.new_zeros(k, d), x.new_zeros(d, d))


def equal_classes(targets: Tensor, k: int, past: Past, mass: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What each row (n,) and each class's past (k,) weigh for classes to weigh the same; a row about 1."""
    ones = torch.ones_like(targets, dtype=past.rows.dtype) if mass is None else mass
    counts = class_sums(ones[:, None], targets, k)[:, 0] + past.rows
    share = (len(targets) + past.rows.sum()) / k / counts.clamp(min=1)
    return share[targets] * ones, share * past.rows


def summed_up(x: Tensor, targets: Tensor, labels: Tensor, past: Past) -> Carried:
    """What rows (n, d) and the past come to: `labels` (k,) images of each class in all.

    A mean that is carried was taken over all labels, those of images that are still at hand among them: where some are
    gone it stays, else images that stay in M would count again at every step.
    """
    k = len(labels)
    at_hand = class_sums(x, targets, k) / torch.bincount(targets, minlength=k).clamp(min=1)[:, None]
    means = torch.where(past.rows[:, None] > 0, past.means, at_hand)
    rows, gone = equal_classes(targets, k, past)
    about = x - means[targets]
    scatter = about.T @ (rows[:, None] * about) + gone.sum() * past.spread
    return Carried(labels, means, scatter / (rows.sum() + gone.sum()))
