"""Evaluate a method: accuracy and known/unknown decisions on unseen rows, and its gate on U_t."""

import math

import torch
from torch import Tensor

from osscl import metrics
from osscl.errors import Diverged
from osscl.methods.base import Discerning, GateReport, Method, OtherHeads, Progress, StepReport
from osscl.runs.record import BINS, GateRecord, KnownRecord
from osscl.stream.build import Stream, Truth

SAMPLES = 8  # accepted and rejected rows that a record lists
FOREIGN_ROWS = 2000  # unseen rows of each peripheral set, to test whether they look known
UPDATES_BETWEEN_CHECKS = 200  # of the loss


def evaluate(method: Method, stream: Stream, t: int) -> tuple[tuple[float, ...], float, Tensor, Tensor]:
    """After step t: % on the classes of each step so far, % over all of them, and truth and prediction by column."""
    columns = {c: j for j, c in enumerate(method.classes)}
    by_step, truths, predictions = [], [], []
    for k in range(t + 1):
        rows = stream.evaluation(k)
        predicted = finite_logits(method, rows.images, t).argmax(1).cpu()
        truth = torch.tensor([columns[c] for c in rows.labels.tolist()], dtype=torch.long)
        by_step.append(100 * float((predicted == truth).float().mean()))
        truths.append(truth)
        predictions.append(predicted)
    truth, predicted = torch.cat(truths), torch.cat(predictions)
    overall = 100 * float((predicted == truth).float().mean())
    return tuple(by_step), overall, truth, predicted


def evaluate_other_heads(method: Method, stream: Stream) -> dict[str, float] | None:
    """After the last step: % over all classes with each alternative head; None for methods without one."""
    if not isinstance(method, OtherHeads):
        return None
    rows = [stream.evaluation(k) for k in range(len(stream))]
    truth, classes = torch.cat([part.labels.cpu() for part in rows]), torch.tensor(method.classes)
    shares = {}
    for name, head in method.other_heads().items():
        predicted = torch.cat([head(part.images).argmax(1).cpu() for part in rows])
        shares[name] = 100 * float((classes[predicted] == truth).float().mean())
    return shares or None


def finite_logits(method: Method, images: Tensor, t: int) -> Tensor:
    """Predictions after step t, which must be finite."""
    logits = method.predict(images)
    if not bool(logits.isfinite().all()):
        raise Diverged(f"training diverged at step {t + 1}: predictions are not finite; try a lower learning rate")
    return logits


def refuse_divergence(report: StepReport, t: int) -> None:
    """Raise if a number of the report is not finite: after each step, not only at the end of the run."""
    gate = report.gate
    thresholds = {} if gate is None else {"threshold": gate.threshold, "pseudo_threshold": gate.pseudo_threshold}
    for name, value in {**report.notes, **thresholds}.items():
        if not math.isfinite(value):
            raise Diverged(f"training diverged at step {t + 1}: {name} is {value}; try a lower learning rate")


def refuse_divergent_loss(where: Progress, t: int) -> None:
    """Raise if the loss is not finite; checked periodically, since reading it waits for the device, and at the end."""
    is_due = where.update % UPDATES_BETWEEN_CHECKS == 0 or where.update == where.updates
    if is_due and where.loss is not None and not math.isfinite(loss := float(where.loss)):
        raise Diverged(
            f"training diverged at step {t + 1}: the loss of {where.phase} is {loss} after {where.update} updates; "
            "try a lower learning rate"
        )


def judge_gate(report: GateReport, truth: Truth, stream: Stream, t: int) -> GateRecord:
    """Compare what the gate accepted and rejected with the ground truth."""
    scores, passed, confident = (part.cpu() for part in (report.scores, report.passed, report.confident))
    kinds = {"seen": truth.seen, "unseen": truth.unseen, "foreign": truth.foreign}
    seen_or_foreign = truth.seen | truth.foreign
    right = report.pseudo_labels.cpu() == truth.labels
    return GateRecord(
        auroc_seen=metrics.auroc(scores, truth.seen),
        auroc_related=metrics.auroc(scores, truth.related),
        auroc_seen_foreign=metrics.auroc(scores[seen_or_foreign], truth.seen[seen_or_foreign]),
        precision=metrics.share(truth.related, passed),
        precision_seen=metrics.share(truth.seen, passed),
        recall=metrics.share(passed, truth.seen),
        fpr95=metrics.fpr_at_recall(scores, truth.seen, 0.95),
        fpr95_unknown=metrics.fpr_at_recall(-scores, ~truth.seen, 0.95),
        pass_rates={kind: metrics.share(passed, rows) for kind, rows in kinds.items()},
        histograms={kind: histogram(scores[rows]) for kind, rows in kinds.items()},
        threshold=report.threshold,
        pseudo_threshold=report.pseudo_threshold,
        passed=int(passed.sum()),
        pseudo_labeled=report.used,
        pseudo_accuracy=metrics.share(right, confident & truth.seen),
        let_in=_examples(passed, stream, t),
        kept_out=_examples(~passed, stream, t),
    )


def judge_known(method: Method, stream: Stream, t: int) -> KnownRecord | None:
    """What looks known after step t, on rows that no step has shown; None for methods that do not decide this.

    A reference that was trained before the first step, on all unlabelled images, has seen the foreign ones.
    """
    if not isinstance(method, Discerning) or method.known_above is None:
        return None
    threshold = float(method.known_above)
    if not math.isfinite(threshold):
        raise Diverged(
            f"training diverged at step {t + 1}: the threshold of known images is {threshold}; "
            "try a lower learning rate"
        )
    held_out = [stream.evaluation(k).images for k in range(len(stream))]
    images = (
        torch.cat(held_out[: t + 1]),
        torch.cat([held_out[0][:0], *held_out[t + 1 :]]),
        stream.foreign_images(FOREIGN_ROWS),
    )
    seen, later, foreign = (method.known_scores(part).cpu() for part in images)
    scores = torch.cat((seen, later, foreign))
    is_seen = torch.arange(len(scores)) < len(seen)
    return KnownRecord(
        auroc=metrics.auroc(scores, is_seen),
        fpr95=metrics.fpr_at_recall(scores, is_seen, 0.95),
        fpr95_unknown=metrics.fpr_at_recall(-scores, ~is_seen, 0.95),
        recall=_share_above(seen, threshold),
        foreign=_share_above(foreign, threshold),
        threshold=threshold,
    )


def _share_above(scores: Tensor, threshold: float) -> float | None:
    return metrics.share(scores > threshold, torch.ones_like(scores, dtype=torch.bool))


def histogram(scores: Tensor) -> tuple[int, ...]:
    """Counts in equal bins over [-1, 1]."""
    return tuple(torch.histc(scores.float().clamp(-1, 1), BINS, -1, 1).int().tolist())


def _examples(mask: Tensor, stream: Stream, t: int) -> tuple[tuple[str, int], ...]:
    """Set and row of the first few rows of U_t in `mask`; the order of U_t is random."""
    rows, names = stream.steps[t], (stream.spec.main, *stream.spec.peripheral)
    chosen = mask.nonzero().squeeze(1)[:SAMPLES].tolist()
    return tuple((names[int(rows.sources[i])], int(rows.unlabeled[i])) for i in chosen)
