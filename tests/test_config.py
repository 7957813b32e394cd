import json
import os
import random
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml

from osscl.config import added_later, content_id, flat, from_plain, override, plain, require, require_declared
from osscl.errors import SpecError, shown, unknown
from osscl.methods import CONFIGURATIONS, URSL
from osscl.runs.spec import EXPERIMENTS, RunSpec, make_spec, schedule, spec_from_plain, spec_to_plain
from osscl.stream.scenario import ScenarioSpec
from refusals import naming


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    kind: Literal["fast", "slow"] = "fast"
    sizes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        require_declared(self)
        require(self.kind == "fast" or len(self.sizes) < 4, self, "sizes", "shorter than 4 where kind is slow")


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    pair: tuple[float, float] = (0.5, 1.0)
    cap: int | None = None
    loud: bool = False
    parts: tuple[Inner, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_declared(self)


@dataclass(frozen=True)
class Counts:
    rows: tuple[tuple[int, ...], ...]


FULL = Outer("x", Inner(1e-3, "slow", (4,)), (0.25, 2.0), 7, True, (Inner(), Inner(0.2)), {"a": 0.5})
CASES = int(os.environ.get("OSSCL_FUZZ_CASES", "100"))
DIGITS = RunSpec(EXPERIMENTS["digits"], URSL)


def nested(value: Any) -> Iterator[Any]:
    """A dataclass and all dataclasses inside it."""
    if is_dataclass(value):
        yield value
        for part in fields(value):
            yield from nested(getattr(value, part.name))


# ----- plain values and back


@pytest.mark.parametrize("value", [Outer("x"), FULL], ids=["defaults", "full"])
@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump], ids=["json", "yaml"])
def test_nested_dataclasses_survive_json_and_yaml(value, dump):
    again = from_plain(Outer, yaml.safe_load(dump(plain(value))))
    assert again == value
    assert isinstance(again.pair, tuple) and isinstance(again.inner, Inner)


def test_plain_values_have_no_tuples_and_no_dataclasses():
    assert plain(FULL)["pair"] == [0.25, 2.0]
    assert plain(FULL)["parts"] == [plain(Inner()), plain(Inner(0.2))]
    assert plain(FULL)["inner"] == {"rate": 1e-3, "kind": "slow", "sizes": [4]}
    assert flat(plain(FULL))["inner.kind"] == "slow"


def test_missing_fields_keep_their_defaults():
    assert from_plain(Outer, {"name": "x", "inner": {"rate": 1}}) == Outer("x", Inner(rate=1.0))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_survives_yaml(name):
    config = CONFIGURATIONS[name]
    assert from_plain(type(config), yaml.safe_load(yaml.safe_dump(plain(config)))) == config


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_spec_survives_json_with_its_id(name):
    spec = make_spec(EXPERIMENTS[name], URSL, schedule("smoke"), 3)
    again = spec_from_plain(json.loads(json.dumps(spec_to_plain(spec))))
    assert again == spec and again.id == spec.id


@pytest.mark.parametrize(
    "wrong",
    [{"inner": {"rate": "much"}}, {"inner": {"rate": True}}, {"inner": {"sizes": 3}}, {"inner": {"sizes": "ab"}},
     {"inner": {"sizes": b"ab"}}, {"inner": {"sizes": [1.5]}}, {"inner": {"kind": ["fast"]}}, {"inner": 3},
     {"cap": 1.0}, {"cap": True}, {"cap": "x"}, {"cap": 16**5000}, {"loud": 1}, {"loud": None}, {"pair": [1]},
     {"shares": 3}, {"shares": {"a": "x"}}, {"parts": [{"rat": 1}]}],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_by_field(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(SpecError, match=naming(next(iter(value)) if isinstance(value, dict) else name)) as refused:
        from_plain(Outer, {"name": "x", **wrong})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_an_integer_in_a_float_field_becomes_a_float():
    assert isinstance(from_plain(Inner, {"rate": 1}).rate, float)
    assert Inner(rate=1).rate == 1


@pytest.mark.parametrize("wrong", [True, 2**63, 1.5, "3", None])
def test_rows_of_counts_are_checked_despite_the_shortcut(wrong):
    assert from_plain(Counts, {"rows": [[1, 2], [], [-3]]}) == Counts(((1, 2), (), (-3,)))
    with pytest.raises(SpecError, match=naming("rows[1][2]")):
        from_plain(Counts, {"rows": [[1], [1, 2, wrong]]})


@pytest.mark.parametrize(
    ("data", "about"),
    [
        ({"nane": "x"}, ["'nane'", "'name'"]),
        ({"name": "x", "inner": {"rat": 1}}, ["'inner.rat'", "'inner.rate'", "kind"]),
        ({}, ["Outer", "name"]),
        ({"name": "x", "inner": 3}, ["inner", "3"]),
        ([1], ["Outer", "[1]"]),
    ],
)
def test_keys_are_checked_at_every_depth(data, about):
    with pytest.raises(SpecError, match=naming(*about)):
        from_plain(Outer, data)


@pytest.mark.parametrize(
    ("change", "hint"),
    [({"method": {"type": "urls"}}, "ursl"), ({"schedule": "smok"}, "smoke"),
     ({"method": {"type": "ursl", "reference": {"tua": 1}}}, "method.reference.tau")],
)  # fmt: skip
def test_unknown_names_in_a_run_spec_get_a_suggestion(change, hint):
    with pytest.raises(SpecError, match=naming(f"'{hint}'")):  # in quotes, unlike what is allowed
        spec_from_plain(spec_to_plain(DIGITS) | change)


# ----- changes by name


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("cap=5", replace(FULL, cap=5)),
        ("cap=null", replace(FULL, cap=None)),
        ("name='3'", replace(FULL, name="3")),
        ("name=a=b", replace(FULL, name="a=b")),
        ("loud=false", replace(FULL, loud=False)),
        ("pair=[1, 2.5]", replace(FULL, pair=(1.0, 2.5))),
        ("inner.rate=1e-3", replace(FULL, inner=replace(FULL.inner, rate=0.001))),
        ("inner.rate=2", replace(FULL, inner=replace(FULL.inner, rate=2.0))),
        ("inner.kind=fast", replace(FULL, inner=replace(FULL.inner, kind="fast"))),
        ("inner.sizes=[3,4,5]", replace(FULL, inner=replace(FULL.inner, sizes=(3, 4, 5)))),
        ("inner={rate: 3}", replace(FULL, inner=Inner(3.0))),
    ],
)
def test_a_change_affects_only_its_field(change, expected):
    before = plain(FULL)
    changed = override(FULL, [change])
    assert changed == expected
    assert plain(changed) == plain(expected)  # types too: 1 == 1.0, but not in a file
    assert plain(FULL) == before


def test_changes_apply_at_once_and_the_last_one_of_a_field_wins():
    assert override(FULL, ["cap=1", "inner.rate=3", "cap=2"]) == replace(FULL, cap=2, inner=replace(FULL.inner, rate=3))
    assert override(FULL, []) is FULL
    long = ["inner.sizes=[1,2,3,4]", "inner.kind=fast"]
    assert override(FULL, long).inner.sizes == (1, 2, 3, 4)
    with pytest.raises(SpecError, match=naming("inner", "sizes", (1, 2, 3, 4))):
        override(FULL, long[:1])


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ("cap", ["field=value", "'cap'"]),
        ("caps=3", ["'caps'", "'cap'"]),
        ("inner.rat=3", ["'inner.rat'", "'inner.rate'"]),
        ("iner.rate=3", ["'iner'", "'inner'"]),
        ("name.first=3", ["name.first", "'name'"]),
        ("cap=many", ["cap", "int", "'many'"]),
        ("cap=1e3", ["cap", "int"]),
        ("name=3", ["name", "str", "3"]),
        ("inner.rate=fast", ["inner.rate", "float", "'fast'"]),
        ("inner.rate=.inf", ["inner.rate", "inf"]),
        ("pair=[1,2,3]", ["pair", "2", "3"]),
        ("pair=[1,x]", ["pair[1]", "float", "'x'"]),
        ("pair=null", ["pair", "list", "None"]),
        ("pair=[1", ["pair", "'[1'"]),
        ("inner.kind=fats", ["inner", "kind", "'fats'", "'fast'"]),
        ("=3", ["field", "''"]),
    ],
)
def test_an_invalid_change_says_why(change, about):
    with pytest.raises(SpecError, match=naming(*about)):
        override(FULL, [change])


def test_a_group_is_not_changed_as_a_whole_and_by_field():
    for changes in (
        ["inner={rate: 1}", "inner.rate=3"],
        ["inner.rate=3", "inner={rate: 1}"],
        ["inner.rate=3", "inner=1"],
    ):
        with pytest.raises(SpecError, match=naming("inner", "both")):
            override(FULL, changes)


@pytest.mark.parametrize(
    "text",
    ["{1: {2: 3}}", "&a [*a]", "[" * 500, "0x" + "f" * 5000, "2024-99-99", "!!set {a}", "!!python/object:os.x {}",
     "{[1]: 2}", "? {a: 1}\n: 2", "!!binary aGk=", "\x00", "-", "1:2:3", "\ud800"],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["name", "inner", "inner.kind", "inner.sizes", "pair", "cap", "parts", "shares", "a.b.c"]
)
def test_nested_and_odd_values_are_refused_in_one_line(name, text):
    try:
        override(FULL, [f"{name}={text}"])
    except SpecError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


def test_a_change_to_a_run_spec_reaches_every_depth_and_is_checked():
    changed = override(DIGITS, ["method.reference.optimiser.rate=1e-2", "scenario.classes_per_step=[4,6]"])
    assert changed.method.reference.optimiser.rate == 0.01 and changed.scenario.classes_per_step == (4, 6)
    for change, about in (
        ("scenario.memory=3", ["scenario", "memory", 10, 3]),
        ("seed=-1", ["seed", -1]),
        ("scenario.peripheral=letters", ["scenario.peripheral", "list", "'letters'"]),
    ):
        with pytest.raises(SpecError, match=naming(*about)):
            override(DIGITS, [change])


# ----- mutated documents

ODD = [None, True, -1, 0, 2**63, 16**5000, 1e308, float("nan"), "", "x" * 10_000, "\ud800", b"ab", [], [[]], {},
       {"a": {}}, {1: 2}, [1, "a"], (), {1}, "digits", "none", "1e-3", -0.5]  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """A document with one of its values replaced, removed or moved."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, copy = rng.choice(keys), value.copy()
    if rng.random() < 0.1:
        del copy[key]
    elif rng.random() < 0.1 and isinstance(copy, dict):
        copy[rng.choice(["", "x", 3, None, "type"])] = copy.pop(key)
    else:
        copy[key] = mutated(copy[key], rng)
    return copy


def test_a_mutated_document_is_valid_or_refused_in_one_line():
    rng, kinds = (
        random.Random(0),
        [*nested(DIGITS), *nested(EXPERIMENTS["cifar100-p05"]), FULL, *CONFIGURATIONS.values()],
    )
    for case in range(CASES):
        spec = kinds[case % len(kinds)]
        document = plain(spec)
        for _ in range(rng.randint(1, 3)):
            document = mutated(document, rng)
        changes = [f"{rng.choice([*flat(plain(spec)), 'x', 'seed.a'])}={shown(rng.choice(ODD))}" for _ in range(2)]
        for read, arguments in ((from_plain, (type(spec), document)), (override, (spec, changes))):
            try:
                content_id(read(*arguments))
            except SpecError as error:
                assert "\n" not in str(error) and len(str(error)) < 2000


# ----- ids


def test_an_id_depends_on_the_content_only():
    assert content_id(FULL) == content_id(from_plain(Outer, json.loads(json.dumps(plain(FULL)))))
    assert content_id(Outer("x", shares={"a": 1.0, "b": 2.0})) == content_id(Outer("x", shares={"b": 2.0, "a": 1.0}))
    assert content_id(Inner(rate=1)) == content_id(Inner(rate=1.0))
    assert content_id(Outer("x", pair=(1, 2))) == content_id(Outer("x", pair=(1.0, 2.0)))
    assert len(content_id(FULL)) == 12 and content_id(FULL, 24).startswith(content_id(FULL))


def test_ids_stay_the_same_across_versions():
    assert content_id(FULL) == "dcc632428839"
    assert content_id([1, "a", None, FULL.inner], 8) == "f0ec075f"


@pytest.mark.parametrize(
    "change", ["name=z", "inner.rate=0.2", "inner.sizes=[4,4]", "pair=[2,0.25]", "cap=null", "loud=false", "shares={}"]
)
def test_any_change_changes_the_id(change):
    assert content_id(override(FULL, [change])) != content_id(FULL)


def later(default: int) -> type:
    """`Inner` in a later version, with one more field."""
    old = [(part.name, part.type, part.default) for part in fields(Inner)]
    return make_dataclass("Inner", [*old, ("extra", int, added_later(default, legacy=0))], frozen=True)


@pytest.mark.parametrize("default", [0, 5])
def test_a_field_added_later_keeps_old_ids_at_its_legacy_value(default):
    kind = later(default)
    assert content_id(kind(extra=0)) == content_id(Inner())
    assert content_id([kind(extra=0)]) == content_id([Inner()])
    assert len({content_id(kind(extra=extra)) for extra in (0, 1, 2)}) == 3
    assert (content_id(kind()) == content_id(Inner())) is (default == 0)


def test_a_file_without_a_later_field_gets_its_legacy_value():
    kind = later(5)
    old = from_plain(kind, plain(Inner(0.2)))
    assert old.extra == 0 and content_id(old) == content_id(Inner(0.2))
    assert from_plain(kind, plain(kind(0.2))) == kind(0.2)


def test_a_run_id_names_method_data_schedule_and_seed_and_covers_the_rest():
    spec = RunSpec(EXPERIMENTS["digits"], URSL, schedule("smoke"), 4)
    assert spec.id.startswith("ursl-digits-smoke-s4-")
    ids = {spec.id, replace(spec, seed=5).id, override(spec, ["scenario.related=399"]).id, replace(spec, stream="a").id}
    ids |= {override(spec, ["method.gate.spread=std"]).id}
    ids |= {override(spec, ["schedule.row_cap=5", "schedule.name=five"]).id}
    assert len(ids) == 6 and replace(spec, stream=None).id == spec.id


@pytest.mark.parametrize("name", ["smoke", "demo", "short", "paper"])
def test_a_changed_schedule_needs_a_new_name(name):
    spec = RunSpec(EXPERIMENTS["digits"], URSL, schedule(name), 0)
    other = "demo" if name == "smoke" else "smoke"
    for change in ("schedule.share=0.33", "schedule.max_updates=77", f"schedule.name={other}"):
        with pytest.raises(SpecError, match="schedule"):
            override(spec, [change])
    assert override(spec, ["schedule.share=0.33", "schedule.name=brief"]).schedule.name == "brief"


# ----- declared types and choices


def choices() -> list[tuple[Any, str]]:
    """Every field of every config that is declared as a choice."""
    found = {}
    for config in [*nested(URSL), *nested(EXPERIMENTS["digits"])]:
        for name, hint in get_type_hints(type(config)).items():
            if get_origin(hint) is Literal:
                found[type(config).__name__, name] = (config, name)
    return list(found.values())


@pytest.mark.parametrize(("config", "name"), choices(), ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_a_value_outside_the_choices_is_refused_with_the_closest(config, name):
    allowed = get_args(get_type_hints(type(config))[name])
    with pytest.raises(SpecError, match=naming(name, f"'{allowed[0]}x'", f"'{allowed[0]}'")):
        replace(config, **{name: f"{allowed[0]}x"})
    with pytest.raises(SpecError, match=naming(name, "'None'")):
        replace(config, **{name: None})


def test_choices_are_found():
    assert len(choices()) >= 8
    assert ScenarioSpec in {type(config) for config, _ in choices()}


@pytest.mark.parametrize(
    ("config", "change", "about"),
    [
        (FULL, {"cap": 30.5}, ["cap", "int | None", 30.5]),
        (FULL, {"cap": True}, ["cap", "int | None", True]),
        (FULL, {"pair": (1.0,)}, ["pair", "tuple", (1.0,)]),
        (FULL, {"pair": [1.0, 2.0]}, ["pair", "tuple", [1.0, 2.0]]),
        (FULL, {"inner": None}, ["inner", "Inner", None]),
        (Inner(), {"rate": "all"}, ["rate", "float", "'all'"]),
        (EXPERIMENTS["digits"], {"peripheral": ["letters"]}, ["peripheral", "tuple", ["letters"]]),
        (EXPERIMENTS["digits"], {"main": ["digits"]}, ["main", "str", ["digits"]]),
    ],
)
def test_a_value_of_another_type_is_refused_on_construction(config, change, about):
    with pytest.raises(SpecError, match=naming(*about)):
        replace(config, **change)


@pytest.mark.parametrize("config", list(nested(DIGITS)), ids=lambda c: type(c).__name__)
def test_specs_are_immutable(config):
    with pytest.raises(FrozenInstanceError):
        setattr(config, fields(config)[0].name, None)


def test_only_fields_are_suggested_by_their_last_part():
    assert "did you mean 'memory.policy'?" in str(unknown("field", "memory.polcy", ["policy"]))
    assert "did you mean 'St. Bernard'?" in str(unknown("class", "St. Bernhard", ["St. Bernard", "poodle"]))
