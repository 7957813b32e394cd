"""A photo agent on the paper's CIFAR-100 stream: `python docs/cifar100_pretrained.py --data DIR`.

The encoder has seen ImageNet, so the result belongs in no table of the paper. The stream is that of
`osscl run cifar100-p05` (ten steps of ten classes, 25 labels each, memory 500) with fewer unlabelled images; pictures
are enlarged to 128 pixels and embedded once, about 20 minutes on two busy CPU cores.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from osscl import metrics
from osscl.agent.photos import PhotoLearner, PhotoModel, PhotoSettings, image_rows
from osscl.data.benchmarks import load_bank
from osscl.places import cache_dir
from osscl.runs.spec import EXPERIMENTS
from osscl.stream.build import Stream, build_stream
from osscl.vision.pretrained import LITE0, FrozenEncoder, load_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100 and CIFAR-10")
    parser.add_argument("--unlabeled", type=int, default=1000, help="unlabelled images a step, of 18,000")
    parser.add_argument("--size", type=int, default=128, help="pixels per side that the encoder sees")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    spec = EXPERIMENTS["cifar100-p05"]
    banks = {name: load_bank(name, asked.data, cache_dir()) for name in (spec.main, *spec.peripheral)}
    learner = new_learner(asked.size, spec.memory)
    learn(learner, build_stream(spec, banks, asked.seed), asked.unlabeled, banks["cifar10"].test.images)


def new_learner(size: int, memory: int) -> PhotoLearner:
    encoder = load_encoder(LITE0)
    assert isinstance(encoder, FrozenEncoder)
    encoder = encoder.at_size(size)
    return PhotoLearner(encoder, PhotoSettings(LITE0, encoder.content_hash, 1, memory), torch.device("cpu"))


def learn(learner: PhotoLearner, stream: Stream, unlabeled: int, foreign: Tensor) -> None:
    """Learn all steps; after each one, print accuracy on test images of the classes so far."""
    started = time.monotonic()
    names = stream.main.class_names
    tests, truth = torch.zeros(0, sum(learner.encoder.widths)), list[str]()
    for t in range(len(stream)):
        step, test = stream.step(t), stream.evaluation(t)
        given = learner.check(step.labeled.images, named(step.labeled.labels, names), step.unlabeled[:unlabeled])
        if t == 0:
            learner.begin(given)
        outcome = learner.learn(given, t, names)
        tests = torch.cat((tests, image_rows(learner.embed(test.images))))
        truth += named(test.labels, names)
        model = learner.model(names)
        print(f"step {t + 1}: {percentages(model, tests, truth)}, {outcome.seconds:.1f} s to learn", flush=True)
    report_unknown(model, tests, image_rows(learner.embed(foreign)))
    print(f"{time.monotonic() - started:.0f} s in all, {unlabeled} unlabelled images a step")
    print(learner.choice())


def named(labels: Tensor, names: Sequence[str]) -> list[str]:
    return [names[label] for label in labels.tolist()]


def percentages(model: PhotoModel, rows: Tensor, truth: Sequence[str]) -> str:
    """Accuracy of the agent and of the two baselines."""
    found = {"agent": model.predict_rows(rows).names, **model.baseline_names(rows)}
    right = {way: sum(a == b for a, b in zip(names, truth, strict=True)) for way, names in found.items()}
    return ", ".join(f"{way} {100 * number / len(truth):.2f} %" for way, number in right.items())


def report_unknown(model: PhotoModel, known: Tensor, foreign: Tensor) -> None:
    """How well the known share tells test images of the learned classes from those of another data set."""
    shares = [model.predict_rows(rows).scores for rows in (known, foreign)]
    assert shares[0] is not None and shares[1] is not None
    is_known = torch.cat((torch.ones(len(known)), torch.zeros(len(foreign)))).bool()
    rejected = [100 * float((share < model.reject).double().mean()) for share in shares]
    print(f"AUROC against {len(foreign)} CIFAR-10 test images {metrics.auroc(torch.cat(shares), is_known):.3f}")
    print(f"rejected: {rejected[0]:.1f} % of known and {rejected[1]:.1f} % of CIFAR-10 images")


if __name__ == "__main__":
    main()
