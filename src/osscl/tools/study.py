"""Compare recipes on validation rows: of the reference network, and of the head of a finished run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl import metrics
from osscl.config import override
from osscl.data.images import Labeled, concat
from osscl.device import pick_device, precision_of, prepare
from osscl.errors import SpecError
from osscl.methods.base import PhaseReport, Progress, Runtime
from osscl.methods.co2l import Co2lConfig
from osscl.methods.gate import Segregated, fit_gate
from osscl.methods.phases import Phases
from osscl.methods.reference import Reference, ReferenceConfig
from osscl.methods.ursl import Ursl, UrslConfig
from osscl.runs.evaluate import evaluate
from osscl.runs.model import load_model, read_spec
from osscl.runs.run import load_banks, setting_of
from osscl.runs.spec import RunSpec, on_validation_rows
from osscl.stream.build import Stream, build_stream
from osscl.vision.encoder import Encoder, in_chunks

SHOTS = (25, 5)


@dataclass(frozen=True)
class Variant:
    """One recipe and its result."""

    changes: tuple[str, ...]  # to the reference's config
    loss: float | None  # of the last update; None for random weights
    # n-shot nearest-class-mean accuracy in % over all classes, on validation rows; None where a class has fewer labels
    shots: dict[str, float | None]
    centered_shots: dict[str, float | None]  # the same with features centred on U_1: robust to a common direction
    effective_rank: float  # of the features of U_1, see `effective_rank`; collapse is a rank near 1
    width: int  # of the features
    auroc: float | None  # of the gate at the first step, classes seen against the rest
    seconds: float
    updates: int


def study_references(
    spec: RunSpec, variants: Sequence[Sequence[str]], epochs: int, data: Path | None = None, device: str = "auto"
) -> list[Variant]:
    """Train each variant on U_1; the first result is that of random weights. All are judged on validation rows."""
    if not spec.scenario.related and not spec.scenario.unrelated:
        raise SpecError("this experiment has no unlabelled images, so there is no U_1 to study")
    for field in (change.partition("=")[0].strip() for variant in variants for change in variant):
        if field in ("pretrained", "epochs_first", "epochs_later"):
            raise SpecError(f"a study trains on U_1 for --epochs epochs: remove {field}")
    config: UrslConfig = spec.method
    configs = [replace(override(config.reference, variant), epochs_first=epochs) for variant in variants]
    where = pick_device(device)
    prepare(where)
    spec = on_validation_rows(spec)
    stream = build_stream(spec.scenario, load_banks(spec, data, where), spec.seed, spec.schedule.row_cap)
    random = _study(spec, stream, config.reference, (), where, trains=False)
    pairs = zip(configs, variants, strict=True)
    return [random, *(_study(spec, stream, variant, changes, where) for variant, changes in pairs)]


def _study(
    spec: RunSpec, stream: Stream, config: ReferenceConfig, changes: Sequence[str], device: torch.device, *,
    trains: bool = True,
) -> Variant:  # fmt: skip
    losses: list[Tensor] = []

    def progress(where: Progress) -> None:
        losses[:] = [where.loss] if where.loss is not None else []

    setting = setting_of(spec, stream)
    runtime = Runtime(device, precision_of(device), progress=progress)
    phases, step = Phases(setting, runtime), stream.step(0)
    phases.begin_step(0)
    reference = Reference(config, setting, phases)
    if trains:
        reference.learn(step.unlabeled, 0)
    gate = fit_gate(spec.method.gate, reference.encoder, step.labeled, step.new_classes, setting, 0)
    scores, _ = gate.score(in_chunks(reference.encoder, step.unlabeled))
    features = in_chunks(reference.encoder.features, step.unlabeled)
    cost = phases.log.reports.get("reference", PhaseReport("reference", 0.0))
    return Variant(
        tuple(changes) if trains else ("random weights",),
        float(losses[0]) if losses else None,
        n_shot(reference.encoder, stream),
        n_shot(reference.encoder, stream, features.mean(0)),
        effective_rank(features),
        features.shape[1],
        metrics.auroc(scores.cpu(), stream.truth(0).seen),
        cost.seconds,
        cost.updates,
    )


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the normalised singular values of centred features (n, d) (Roy and Vetterli, 2007)."""
    x = features.double() - features.double().mean(0)
    values = torch.linalg.eigvalsh(x.T @ x).clamp(min=0).sqrt()
    p = values / values.sum().clamp(min=1e-12)
    return float(torch.exp(-(p * p.clamp(min=1e-12).log()).sum()))


def n_shot(encoder: Encoder, stream: Stream, center: Tensor | None = None) -> dict[str, float | None]:
    """Nearest class mean of the first n labels of every class, seen or not: a diagnostic, not a method."""
    known = concat(*(stream.step(t).labeled for t in range(len(stream))))
    asked = concat(*(stream.evaluation(t) for t in range(len(stream))))
    raw = (in_chunks(encoder.features, rows.images) for rows in (known, asked))
    features, tests = (F.normalize(x if center is None else x - center, dim=1) for x in raw)
    fewest = int(known.labels.unique(return_counts=True)[1].min())
    return {
        str(n): 100 * nearest_mean_accuracy(features, known, tests, asked, n) if n <= fewest else None for n in SHOTS
    }


def nearest_mean_accuracy(features: Tensor, known: Labeled, tests: Tensor, asked: Labeled, n: int) -> float:
    classes = known.labels.unique()
    means = torch.stack([features[(known.labels == c).nonzero().squeeze(1)[:n]].mean(0) for c in classes])
    found = classes[(tests @ F.normalize(means, dim=1).T).argmax(1)]
    return float((found == asked.labels).float().mean())


@dataclass(frozen=True)
class HeadVariant:
    """One way to fit the head of a trained agent, and its result."""

    changes: tuple[str, ...]  # to the head's config
    final: float  # % over all classes, on validation rows
    seconds: float


def study_heads(
    folder: Path, variants: Sequence[Sequence[str]], data: Path | None = None, device: str = "auto"
) -> list[HeadVariant]:
    """Refit the head of a finished run, on its last step and the memory as updated after it."""
    spec, where = read_spec(folder), pick_device(device)
    if spec.stream is not None:
        raise SpecError(f"{folder} used a stream file: a study of heads needs a stream that scenario and seed define")
    # URSL-plus is left out: a finished run does not keep what its heads learn from besides the last step and M.
    if type(spec.method) not in (UrslConfig, Co2lConfig) or not spec.scenario.validation_share:
        raise SpecError(f"a study of heads needs a run of ursl or co2l with --validation, not {folder}")
    stream = build_stream(spec.scenario, load_banks(spec, data, where), spec.seed, spec.schedule.row_cap)
    agent: Any = load_model(folder, device).agent
    step, results = stream.step(len(stream) - 1), []
    for changes in variants:
        began = time.perf_counter()
        agent.config = override(spec.method, [f"head.{change}" for change in changes])
        if isinstance(agent, Ursl):
            agent.fit_head(step, Segregated(agent.setting.no_images(), step.unlabeled[:0]))  # its head needs no gate
        else:
            agent.fit_head(step)
        results.append(HeadVariant(tuple(changes), evaluate(agent, stream, step.index)[1], time.perf_counter() - began))
    return results
