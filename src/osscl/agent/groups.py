"""Images that look like nothing learned, in groups that may be classes to come."""

import numpy as np
import torch
from torch import Tensor

from osscl.learn.linear_head import center_and_normalize

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
FEWEST = 8  # images below which there is one group
MOST_GROUPS = 12  # that are looked for where nobody says how many
MOST_ROWS = 4000  # that are held against each other; the others join the nearest group


def around_their_mean(features: Tensor) -> Tensor:
    """Rows (n, width) about the mean of all of them, on the sphere."""
    return center_and_normalize(features, features.mean(0))


def grouped(rows: Tensor, groups: int | None = None) -> Tensor:
    """The group of each row (n, d), (n,) from 0, the largest group first; as many as told, or as suit the rows best.

    Ward's clustering: what is merged last is furthest apart. How many groups suit is said by the mean silhouette.
    """
    n = len(rows)
    if n < 2 or groups == 1 or (groups is None and n < FEWEST):
        return torch.zeros(n, dtype=torch.long)
    from scipy.cluster.hierarchy import linkage

    picked = torch.linspace(0, n - 1, min(n, MOST_ROWS)).long()
    sample = rows[picked].double().numpy()
    tree = linkage(sample, "ward")
    labels = _cut(tree, min(groups, n)) if groups is not None else _best_cut(tree, sample)
    return _largest_first(labels if len(picked) == n else _nearest(rows, rows[picked], labels))


def _cut(tree: Matrix, groups: int) -> Tensor:
    from scipy.cluster.hierarchy import fcluster

    return torch.from_numpy(fcluster(tree, groups, "maxclust").astype(np.int64) - 1)


def _best_cut(
    tree: Matrix,
    sample: Matrix,
) -> Tensor:
    from sklearn.metrics import silhouette_score

    cuts = [_cut(tree, k) for k in range(2, min(MOST_GROUPS, len(sample) // 2) + 1)]
    cuts = [cut for cut in cuts if len(cut.unique()) > 1]  # rows that are all the same are one group
    if not cuts:
        return torch.zeros(len(sample), dtype=torch.long)
    return max(cuts, key=lambda cut: float(silhouette_score(sample, cut.numpy())))


def _nearest(rows: Tensor, sample: Tensor, labels: Tensor) -> Tensor:
    means = torch.stack([sample[labels == group].mean(0) for group in labels.unique()])
    return torch.cdist(rows.float(), means.float()).argmin(1)


def _largest_first(labels: Tensor) -> Tensor:
    order = labels.bincount().argsort(descending=True, stable=True)
    return order.argsort()[labels]
