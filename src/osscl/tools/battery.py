"""`check_method`: what every method must do, checked on a toy stream; also for methods of other packages."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor

from osscl.data.images import ImageBank, Labeled, concat
from osscl.methods.base import Discerning, Keeping, Method, Runtime, Schedule, Setting, State, StepReport
from osscl.runs.run import threads_for
from osscl.storage import read_state, write_state
from osscl.stream.build import Stream, build_stream
from osscl.stream.scenario import ScenarioSpec
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat


def leaves(value: Any, place: str, seen: set[int]) -> dict[str, Any]:
    """Tensors, generators and plain values of an object and everything it holds, by path."""
    if isinstance(value, Tensor | Generator):
        return {place: value.clone() if isinstance(value, Tensor) else value.get_state()}
    if value is None or isinstance(value, bool | int | float | str):
        return {place: value}
    if id(value) in seen or isinstance(value, type | ModuleType):
        return {}
    seen.add(id(value))
    inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    inner = inner if isinstance(inner, dict) else getattr(inner, "__dict__", {})
    names = (key if isinstance(key, str) else i for i, key in enumerate(inner))
    parts = [leaves(part, f"{place}.{name}", seen) for name, part in zip(names, inner.values(), strict=True)]
    return {key: leaf for part in parts for key, leaf in part.items()}


def difference(one: Any, other: Any) -> str | None:
    """The path at which two states differ, bit for bit; None if they do not."""
    ours, theirs = leaves(one, "", set()), leaves(other, "", set())
    for name in {**ours, **theirs}:
        a, b = ours.get(name, leaves), theirs.get(name, leaves)
        if type(a) is not type(b) or not (torch.equal(a, b) if isinstance(a, Tensor) else a == b):
            return name.lstrip(".")
    return None


FEW, ENOUGH = 3, 24  # updates per phase: to run the code, to learn something
TOY = ScenarioSpec(
    "toy", ("foreign toy",), labels_per_class=4, memory=13, classes_per_step=(2, 2, 2), related=24, unrelated=8
)


def toy_stream(spec: ScenarioSpec = TOY, seed: int = 0, size: int = 8) -> Stream:
    """Three steps of two classes: noisy patterns of `size` pixels; unlabelled rows include foreign patterns."""
    patterns = torch.rand(10, 1, 4, 4, generator=Generator().manual_seed(0)).round()
    banks = {"toy": _bank("toy", patterns[:6], 1, size), "foreign toy": _bank("foreign toy", patterns[6:], 2, size)}
    return build_stream(spec, banks, seed)


def _bank(name: str, patterns: Tensor, seed: int, size: int) -> ImageBank:
    rng = Generator().manual_seed(seed)
    train, test = (_noisy(patterns, rows, rng, size // 4) for rows in (24, 10))
    return ImageBank(name, train, test, tuple(f"{name} {c}" for c in range(len(patterns))), content=name)


def _noisy(patterns: Tensor, rows: int, rng: Generator, scale: int) -> Labeled:
    """`rows` images of each pattern."""
    labels = torch.arange(len(patterns)).repeat_interleave(rows)
    clean = patterns[labels].repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    noise = 40 * torch.randn(clean.shape, generator=rng)
    return Labeled((48 + 160 * clean + noise).clamp(0, 255).to(torch.uint8), labels)


@dataclass(frozen=True)
class Maker:
    """Makes identical instances of one method."""

    method: Callable[[Any, Setting, Runtime], Method]
    config: object
    setting: Setting
    runtime: Runtime = field(default_factory=Runtime)

    def __call__(self, checkpoint: Callable[[bool], None] = lambda end: None, updates: int | None = FEW) -> Method:
        setting = replace(self.setting, schedule=Schedule("toy", max_updates=updates))
        return self.method(self.config, setting, replace(self.runtime, maybe_checkpoint=checkpoint))


def maker(method: Callable[[Any, Setting, Runtime], Method], config: object, stream: Stream) -> Maker:
    """A maker for the images of a toy stream."""
    pixels = stream.main.train.images.float() / 255
    images = ImageFormat(pixels.shape[1], pixels.shape[-1], (float(pixels.mean()),), (float(pixels.std()),))
    augmentation = Augmentation(scale=(0.6, 1.0), flip=0.0, jitter=0.0, grey=0.0)
    pool = stream.whole_pool() if getattr(config, "wants_whole_pool", False) else None
    return Maker(method, config, Setting(images, augmentation, stream.spec.memory, stream.seed, Schedule("toy"), pool))


def held_out(stream: Stream) -> Labeled:
    """The evaluation rows of all classes."""
    return concat(*(stream.evaluation(t) for t in range(len(stream))))


def accuracy(agent: Method, stream: Stream) -> float:
    """Accuracy on the held-out rows."""
    rows = held_out(stream)
    return float((torch.tensor(agent.classes)[agent.predict(rows.images).argmax(1)] == rows.labels).float().mean())


class Interrupted(Exception):
    """Raised by the battery to stop a method."""


def check_method(method: type, config: object | None = None, stream: Stream | None = None) -> None:
    """Raise AssertionError if a method breaks the contract; `config` is `method.Config()` by default.

    `stream` is `toy_stream()` by default; for a method that cannot use its tiny images or memory, pass another one.
    """
    if config is None:
        if not hasattr(method, "Config"):
            raise TypeError(f"check_method needs a config for {method.__name__}, which has no Config of its own")
        config = method.Config()
    stream = stream or toy_stream()
    make = maker(method, config, stream)
    with threads_for(make()):
        for check in CHECKS:
            try:
                check(make, stream)
            except Exception as error:
                error.add_note(f"seen in {check.__name__}: {check.__doc__}")
                raise


# ----- the claims


def check_beats_chance(make: Maker, stream: Stream) -> None:
    """After the last step accuracy over all classes is at least three times chance."""
    agent = make(updates=ENOUGH)
    _learn(agent, stream)
    right, chance = accuracy(agent, stream), 1 / stream.spec.classes
    _claim("beats chance", right >= 3 * chance, f"{right:.0%} of the held-out rows are right; chance is {chance:.0%}")


def check_same_seed(make: Maker, stream: Stream) -> None:
    """Two instances with one seed predict the same bits."""
    first, second = (_predicted_by(make(), stream) for _ in range(2))
    _claim("same seed", torch.equal(first, second), f"two runs of one seed differ by up to {_gap(first, second)}")


def check_no_global_randomness(make: Maker, stream: Stream) -> None:
    """Predictions do not depend on torch's global generator: all randomness comes from the setting's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = _predicted_by(make(), stream)
        torch.manual_seed(2)
        second = _predicted_by(make(), stream)
    _claim("no global randomness", torch.equal(first, second), "torch.manual_seed changes what is learned")


def check_predict_changes_nothing(make: Maker, stream: Stream) -> None:
    """predict() is repeatable and leaves weights, buffers, modes, generators and state unchanged."""
    agent, images = make(), held_out(stream).images
    _learn(agent, stream)
    before, noise = leaves(agent, "", set()), torch.get_rng_state()
    first, second = _answers(agent, images), _answers(agent, images)
    _claim("predict changes nothing", torch.equal(first, second), "two calls give different results")
    _claim("predict changes nothing", torch.equal(noise, torch.get_rng_state()), "it uses torch's global generator")
    name = difference(before, leaves(agent, "", set()))
    _claim("predict changes nothing", name is None, f"{name} is not what it was before predict()")


def check_rows_are_judged_alone(make: Maker, stream: Stream) -> None:
    """The prediction for an image does not depend on the rest of the batch."""
    agent, images = make(), held_out(stream).images
    _learn(agent, stream)
    together = _answers(agent, images)[:3]
    alone = torch.cat([_answers(agent, image[None]) for image in images[:3]])
    same = torch.allclose(together, alone, rtol=1e-3, atol=1e-4)
    _claim("rows are judged alone", same, f"in another batch, logits change by up to {_gap(together, alone)}")


def check_memory(make: Maker, stream: Stream) -> None:
    """Images in the state stay within the budget; `memory.labeled` is balanced over the classes seen."""
    agent, budget = make(), make.setting.memory
    for t in range(len(stream)):
        step = stream.step(t)
        agent.learn(step)
        shape, found = step.labeled.images.shape[1:], leaves(agent.state(), "", set()).values()
        tensors = [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.dtype == torch.uint8]
        stored = sum(len(images) for images in tensors if images.shape[1:] == shape)
        _claim("memory", stored <= budget, f"{stored} images are kept at step {t + 1}; the budget is {budget}")
        if not hasattr(getattr(agent, "memory", None), "labeled"):
            continue
        kept: Labeled = agent.memory.labeled  # type: ignore[attr-defined]
        counts = [int((kept.labels == c).sum()) for c in agent.classes]
        _claim("memory", sum(counts) == len(kept), f"images of classes not yet met are kept at step {t + 1}")
        _claim("memory", max(counts) - min(counts) <= 1, f"images per class at step {t + 1} are {counts}, not balanced")


def check_kept(make: Maker, stream: Stream) -> None:
    """After a step, nothing in the state but what kept() names is larger if the step has more images."""
    size, sizes = stream.main.train.images.shape[-1], []
    for times in (1, 2):
        spec = stream.spec
        more = {"labels_per_class": (spec.labels_per_class or 1) * times, "related": (spec.related or 0) * times}
        agent, larger = make(), toy_stream(replace(spec, **more), stream.seed, size)  # type: ignore[arg-type]
        _learn(agent, larger)
        found = leaves(agent.state(), "", set())
        kept = list(agent.kept().values()) if isinstance(agent, Keeping) else []
        sizes.append({name: leaf.numel() for name, leaf in found.items() if _is_uncounted(leaf, kept)})
    grown = [name for name in sizes[0] if sizes[1].get(name, 0) > sizes[0][name]] + [*sizes[1].keys() - sizes[0]]
    _claim("kept", not grown, f"{''.join(grown[:1]).lstrip('.')} grows with the data, but kept() does not list it")


def _is_uncounted(leaf: Any, kept: list[Tensor]) -> bool:
    """Whether a leaf of a state is a tensor other than those that a method says it keeps."""
    return isinstance(leaf, Tensor) and not any(leaf.shape == one.shape and torch.equal(leaf, one) for one in kept)


def check_empty_world(make: Maker, stream: Stream) -> None:
    """Steps without unlabelled images work: all of them, or only the first."""
    for empty in (range(len(stream)), range(1)):
        agent = make()
        for t in range(len(stream)):
            step = stream.step(t)
            agent.learn(replace(step, unlabeled=step.unlabeled[:0]) if t in empty else step)
        _check_columns("empty world", agent, stream, len(stream) - 1)


def check_step_unchanged(make: Maker, stream: Stream) -> None:
    """Learning leaves the tensors of the step unchanged."""
    agent = make()
    for t in range(len(stream)):
        step, fresh = stream.step(t), stream.step(t)
        agent.learn(step)
        for name, used, clean in (
            ("labeled.images", step.labeled.images, fresh.labeled.images),
            ("labeled.labels", step.labeled.labels, fresh.labeled.labels),
            ("unlabeled", step.unlabeled, fresh.unlabeled),
        ):
            _claim("step unchanged", torch.equal(used, clean), f"{name} is changed by learning step {t + 1}")


def check_classes_met(make: Maker, stream: Stream) -> None:
    """After every step `classes` has all classes seen, in order, and predict() one finite column for each."""
    agent = make()
    for t in range(len(stream)):
        agent.learn(stream.step(t))
        _check_columns("classes met", agent, stream, t)


def check_saved_and_reloaded(make: Maker, stream: Stream) -> None:
    """After every step, a new instance loaded from a file predicts and continues with the same bits."""
    agent, images, handed_on = make(), held_out(stream).images, make()
    for t in range(len(stream)):
        agent.learn(stream.step(t))
        handed_on.learn(stream.step(t))
        state = _reloaded(handed_on.state())
        handed_on = _loaded("saved and reloaded", make(), state)
        name = difference(state, _reloaded(handed_on.state()))
        _claim("saved and reloaded", name is None, f"{name} is lost when a loaded state is saved again")
        same = torch.equal(_answers(agent, images), _answers(handed_on, images))
        _claim("saved and reloaded", same, f"after step {t + 1} the reloaded instance predicts differently")


def check_continues_exactly(make: Maker, stream: Stream) -> None:
    """Stopped at a checkpoint inside learn() and reloaded, it ends in the same bits and reports."""
    ends: list[bool] = []
    agent = make(ends.append)
    reports, images = _learn(agent, stream), held_out(stream).images
    _claim(
        "continues exactly",
        bool(ends),
        "learn() never calls runtime.maybe_checkpoint()",
    )
    for k in _moments(ends):
        resumed, told = _interrupted(make, stream, k)
        where = f"stopped at maybe_checkpoint() number {k + 1} of {len(ends)} and reloaded"
        same = torch.equal(_answers(agent, images), _answers(resumed, images))
        _claim("continues exactly", same, f"{where}, it ends in different predictions")
        for t, (one, other) in enumerate(zip(reports, told, strict=True)):
            _claim(
                "continues exactly", _costless(one) == _costless(other), f"{where}, it reports step {t + 1} differently"
            )


CHECKS: tuple[Callable[[Maker, Stream], None], ...] = (
    check_classes_met,
    check_step_unchanged,
    check_empty_world,
    check_memory,
    check_kept,
    check_same_seed,
    check_no_global_randomness,
    check_predict_changes_nothing,
    check_rows_are_judged_alone,
    check_saved_and_reloaded,
    check_continues_exactly,
    check_beats_chance,
)


# ----- how they are checked


def _claim(name: str, holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(f"{name}: {otherwise}")


def _gap(one: Tensor, other: Tensor) -> str:
    return f"{float((one - other).detach().abs().max()):.2g}"


def _learn(agent: Method, stream: Stream, start: int = 0) -> list[StepReport]:
    reports = [agent.learn(stream.step(t)) for t in range(start, len(stream))]
    for report in reports:
        otherwise = f"learn() returns {type(report).__name__}; return a StepReport, which may be empty"
        _claim("reports", isinstance(report, StepReport), otherwise)
    return reports


def _predicted_by(agent: Method, stream: Stream) -> Tensor:
    _learn(agent, stream)
    return _answers(agent, held_out(stream).images)


def _answers(agent: Method, images: Tensor) -> Tensor:
    """All answers for images, one row each: logits and, if the method has them, known scores."""
    logits = agent.predict(images)
    if not isinstance(agent, Discerning) or agent.known_above is None:
        return logits
    scores = agent.known_scores(images)
    _claim(
        "known scores", tuple(scores.shape) == (len(images),), f"shape {tuple(scores.shape)} for {len(images)} images"
    )
    _claim("known scores", bool(scores.isfinite().all()), "some are not finite")
    return torch.cat((logits, scores[:, None]), 1)


def _check_columns(name: str, agent: Method, stream: Stream, t: int) -> None:
    met = [c for rows in stream.steps[: t + 1] for c in rows.new_classes]
    _claim(name, list(agent.classes) == met, f"classes is {agent.classes} after step {t + 1}, not {met}")
    images = held_out(stream).images
    logits, shape = agent.predict(images), (len(images), len(met))
    _claim(name, tuple(logits.shape) == shape, f"predict() returns {tuple(logits.shape)} at step {t + 1}, not {shape}")
    _claim(name, bool(logits.isfinite().all()), f"predict() returns numbers that are not finite at step {t + 1}")


def _reloaded(state: State) -> State:
    """The state after writing it to a file and reading it back."""
    with tempfile.TemporaryDirectory() as folder:
        write_state(Path(folder) / "state", state)
        read = read_state(Path(folder) / "state")
    assert read is not None
    return read


def _loaded(claim: str, agent: Method, state: State) -> Method:
    try:
        agent.load_state(state)
    except KeyError as error:
        raise AssertionError(f"{claim}: load_state() needs {error}, which state() lacks") from error
    return agent


def _moments(ends: list[bool]) -> list[int]:
    """A few calls of maybe_checkpoint() from the whole run, including ends of phases."""
    chosen: set[int] = set()
    for calls in (range(len(ends)), [k for k, is_end in enumerate(ends) if is_end]):
        chosen |= {calls[round(i * (len(calls) - 1) / 3)] for i in range(4) if calls}
    return sorted(chosen)


def _interrupted(make: Maker, stream: Stream, k: int) -> tuple[Method, list[StepReport]]:
    """Stop an instance at call k of maybe_checkpoint(), load its state into a new one, and finish there."""
    left, saved = iter(range(k)), []

    def checkpoint(_: bool) -> None:
        if next(left, None) is None:
            saved.append(_reloaded(agent.state()))
            raise Interrupted

    agent = make(checkpoint)
    reports: list[StepReport] = []
    try:
        for t in range(len(stream)):
            reports.append(agent.learn(stream.step(t)))
    except Interrupted:
        pass
    _claim(
        "continues exactly",
        len(saved) == 1,
        f"stopped at checkpoint {k + 1}, it called maybe_checkpoint() again",
    )
    resumed = _loaded("continues exactly", make(), saved[0])
    name = difference(saved[0], _reloaded(resumed.state()))
    _claim(
        "continues exactly",
        name is None,
        f"{name} is lost when checkpoint {k + 1} is loaded",
    )
    return resumed, reports + _learn(resumed, stream, len(reports))


def _costless(report: StepReport) -> list[Any]:
    """A report without its seconds, as plain values."""
    phases = [(phase.name, phase.updates, phase.views) for phase in report.phases]
    gate = [value.tolist() if isinstance(value, Tensor) else value for value in vars(report.gate or object).values()]
    return [phases, dict(report.notes), gate]
