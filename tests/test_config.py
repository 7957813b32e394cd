import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml

from osscl.config import added_later, content_id, from_plain, override, plain, require_declared
from osscl.errors import SpecError
from osscl.methods import CONFIGURATIONS, URSL, UrslConfig
from osscl.methods.base import Schedule
from osscl.runs.spec import EXPERIMENTS, RunSpec, make_spec, schedule, spec_from_plain, spec_to_plain
from osscl.stream.scenario import ScenarioSpec


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    kind: Literal["fast", "slow"] = "fast"
    sizes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        require_declared(self)


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    pair: tuple[float, float] = (0.5, 1.0)
    cap: int | None = None
    loud: bool = False
    parts: tuple[Inner, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)


FULL = Outer("x", Inner(1e-3, "slow", (4,)), (0.25, 2.0), 7, True, (Inner(), Inner(0.2)), {"a": 0.5})


def configs(value: Any) -> Iterator[Any]:
    """A dataclass and all dataclasses inside of it."""
    if is_dataclass(value):
        yield value
        for part in fields(value):
            yield from configs(getattr(value, part.name))


# ----- to plain data and back


@pytest.mark.parametrize("value", [Outer("x"), FULL], ids=["defaults", "full"])
@pytest.mark.parametrize("through", [json, yaml], ids=["json", "yaml"])
def test_nested_dataclasses_come_back_from_files(value, through):
    text = json.dumps(plain(value)) if through is json else yaml.safe_dump(plain(value))
    data = json.loads(text) if through is json else yaml.safe_load(text)
    again = from_plain(Outer, data)
    assert again == value
    assert isinstance(again.pair, tuple) and isinstance(again.inner, Inner)


def test_plain_data_has_no_tuples_and_no_dataclasses():
    assert plain(FULL)["pair"] == [0.25, 2.0]
    assert plain(FULL)["parts"] == [plain(Inner()), plain(Inner(0.2))]
    assert plain(FULL)["inner"] == {"rate": 1e-3, "kind": "slow", "sizes": [4]}


def test_fields_left_out_keep_their_defaults():
    assert from_plain(Outer, {"name": "x", "inner": {"rate": 1}}) == Outer("x", Inner(rate=1.0))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_comes_back_from_yaml(name):
    config = CONFIGURATIONS[name]
    assert from_plain(type(config), yaml.safe_load(yaml.safe_dump(plain(config)))) == config


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_spec_comes_back_from_json_with_its_id(name):
    spec = make_spec(EXPERIMENTS[name], URSL, schedule("smoke"), 3)
    again = spec_from_plain(json.loads(json.dumps(spec_to_plain(spec))))
    assert again == spec
    assert again.id == spec.id


def test_an_integer_in_a_float_field_becomes_a_float_and_nothing_else_is_bent():
    assert isinstance(from_plain(Inner, {"rate": 1}).rate, float)
    for wrong in ({"rate": "much"}, {"rate": True}, {"sizes": 3}, {"sizes": "ab"}, {"sizes": [1.5]}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            from_plain(Inner, wrong)
    for wrong in ({"cap": 1.0}, {"cap": True}, {"cap": "x"}, {"loud": 1}, {"loud": None}, {"pair": [1]}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            from_plain(Outer, {"name": "x", **wrong})


def test_an_unknown_key_names_the_nearest_at_any_depth():
    with pytest.raises(SpecError, match="unknown field 'nane'; did you mean 'name'"):
        from_plain(Outer, {"nane": "x"})
    with pytest.raises(SpecError, match=r"unknown field 'inner.rat'; did you mean 'rate'\? allowed: rate, kind, sizes"):
        from_plain(Outer, {"name": "x", "inner": {"rat": 1}})
    with pytest.raises(SpecError, match=r"'method.learner.gama'; did you mean 'gamma'"):
        spec_from_plain({"scenario": {}, "method": {"type": "ursl", "learner": {"gama": 1}}})


def test_a_word_is_no_list_of_letters():
    with pytest.raises(SpecError, match=r"scenario\.peripheral must be a list, got 'letters'"):
        override(RunSpec(EXPERIMENTS["digits"], URSL), ["scenario.peripheral=letters"])


def test_a_missing_field_and_a_value_that_is_no_mapping_are_the_users_errors():
    with pytest.raises(SpecError, match="name"):
        from_plain(Outer, {})
    with pytest.raises(SpecError, match=r"inner must be a mapping of fields, got 3"):
        from_plain(Outer, {"name": "x", "inner": 3})


def test_an_unknown_method_type_or_schedule_names_the_nearest():
    data = spec_to_plain(RunSpec(EXPERIMENTS["digits"], URSL))
    with pytest.raises(SpecError, match="did you mean 'ursl'"):
        spec_from_plain(data | {"method": {"type": "urls"}})
    with pytest.raises(SpecError, match="did you mean 'smoke'"):
        spec_from_plain(data | {"schedule": "smok"})


# ----- changes by name


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("cap=5", replace(FULL, cap=5)),
        ("cap=null", replace(FULL, cap=None)),
        ("name=y", replace(FULL, name="y")),
        ("name='3'", replace(FULL, name="3")),
        ("name=a=b", replace(FULL, name="a=b")),
        ("loud=false", replace(FULL, loud=False)),
        ("pair=[1, 2.5]", replace(FULL, pair=(1.0, 2.5))),
        ("inner.rate=1e-3", replace(FULL, inner=replace(FULL.inner, rate=0.001))),
        ("inner.rate=2", replace(FULL, inner=replace(FULL.inner, rate=2.0))),
        ("inner.rate=.5", replace(FULL, inner=replace(FULL.inner, rate=0.5))),
        ("inner.kind=fast", replace(FULL, inner=replace(FULL.inner, kind="fast"))),
        ("inner.sizes=[3,4,5]", replace(FULL, inner=replace(FULL.inner, sizes=(3, 4, 5)))),
        ("inner={rate: 3}", replace(FULL, inner=Inner(3.0))),
    ],
)
def test_a_change_changes_its_field_alone(change, expected):
    changed = override(FULL, [change])
    assert changed == expected
    assert plain(changed) == plain(expected)  # types too: 1 == 1.0, but not in a file


def test_changes_are_carried_out_in_order_and_leave_the_original():
    before = plain(FULL)
    assert override(FULL, ["cap=1", "inner.rate=3", "cap=2"]) == replace(FULL, cap=2, inner=replace(FULL.inner, rate=3))
    assert override(FULL, []) is FULL
    assert plain(FULL) == before


def test_changes_are_carried_out_at_once_and_only_the_whole_must_hold():
    wide = ["reference.net.hidden=64", "learner.start=reference", "learner.net.hidden=64"]
    assert override(URSL, wide).learner.start == "reference"
    with pytest.raises(SpecError, match="of one shape"):
        override(URSL, wide[:2])
    with pytest.raises(SpecError, match="given as a whole already"):
        override(FULL, ["inner={rate: 1}", "inner.rate=3"])


def test_a_change_reaches_deep_into_a_run_spec():
    spec = RunSpec(EXPERIMENTS["digits"], URSL)
    changed = override(
        spec, ["method.learner.optimiser.rate=1e-2", "scenario.classes_per_step=[4,6]", "method.gate.eta=[-3,-1]"]
    )
    assert isinstance(changed.method, UrslConfig)
    assert changed.method.learner.optimiser.rate == 0.01
    assert changed.method.gate.eta == (-3.0, -1.0)
    assert changed.scenario.classes_per_step == (4, 6)
    assert changed.method.reference == spec.method.reference


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cap", "written field=value, got 'cap'"),
        ("caps=3", "unknown field 'caps'; did you mean 'cap'"),
        ("inner.rat=3", "unknown field 'inner.rat'; did you mean 'rate'"),
        ("iner.rate=3", "unknown field 'iner'; did you mean 'inner'"),
        ("name.first=3", "name.first: 'name' is not a group of fields"),
        ("cap=many", "cap must be of type int, got 'many'"),
        ("cap=1e3", "cap must be of type int"),
        ("cap=2.5", "cap must be of type int"),
        ("name=3", "name must be of type str"),
        ("name=null", "name must be of type str, got None"),
        ("inner.rate=fast", "inner.rate must be of type float, got 'fast'"),
        ("inner.rate=true", "inner.rate must be of type float"),
        ("pair=[1,2,3]", "pair must have 2 entries, got 3"),
        ("pair=[1,x]", r"pair\[1\] must be of type float"),
        ("pair=null", "pair must be a list"),
        ("pair=[1", "cannot read the value"),
        ("inner.kind=fats", "unknown kind 'fats'; did you mean 'fast'"),
        ("=3", "unknown field ''"),
    ],
)
def test_a_change_that_cannot_be_says_why(change, message):
    with pytest.raises(SpecError, match=message):
        override(FULL, [change])


def test_a_change_to_a_spec_is_checked_as_at_birth():
    spec = RunSpec(EXPERIMENTS["digits"], URSL)
    with pytest.raises(SpecError, match="memory must be 0"):
        override(spec, ["scenario.memory=3"])
    with pytest.raises(SpecError, match="seed must be 0 or more"):
        override(spec, ["seed=-1"])


# ----- ids


def test_an_id_follows_the_content_and_nothing_else():
    assert content_id(FULL) == content_id(replace(FULL))
    assert content_id(FULL) == content_id(from_plain(Outer, json.loads(json.dumps(plain(FULL)))))
    assert content_id(Outer("x", shares={"a": 1.0, "b": 2.0})) == content_id(Outer("x", shares={"b": 2.0, "a": 1.0}))
    assert len(content_id(FULL)) == 12 and len(content_id(FULL, 24)) == 24
    assert content_id(FULL, 24).startswith(content_id(FULL))


@pytest.mark.parametrize(
    "change", ["name=z", "inner.rate=0.2", "inner.sizes=[4,4]", "pair=[2,0.25]", "cap=null", "loud=false", "shares={}"]
)
def test_any_change_changes_the_id(change):
    assert content_id(override(FULL, [change])) != content_id(FULL)


def test_equal_specs_have_one_id_however_their_numbers_are_written():
    assert Inner(rate=1) == Inner(rate=1.0)
    assert content_id(Inner(rate=1)) == content_id(Inner(rate=1.0))
    assert content_id(Outer("x", pair=(1, 2))) == content_id(Outer("x", pair=(1.0, 2.0)))
    written = RunSpec(EXPERIMENTS["digits"], replace(URSL, learner=replace(URSL.learner, gamma=1)))
    assert spec_from_plain(spec_to_plain(written)).id == written.id


def later(default: int) -> type:
    """`Inner` as a later version has it, with a field more."""
    old = [(part.name, part.type, part.default) for part in fields(Inner)]
    return make_dataclass("Inner", [*old, ("extra", int, added_later(default, legacy=0))], frozen=True)


@pytest.mark.parametrize("default", [0, 5])
def test_a_field_added_later_leaves_old_ids_as_they_were_at_its_legacy_value(default):
    kind = later(default)
    assert content_id(kind(extra=0)) == content_id(Inner())
    assert content_id([kind(extra=0)]) == content_id([Inner()])
    assert content_id(kind(extra=1)) != content_id(Inner())
    assert content_id(kind(extra=1)) != content_id(kind(extra=2))
    assert (content_id(kind()) == content_id(Inner())) is (default == 0)


def test_a_file_from_before_a_field_means_what_it_meant_then():
    kind = later(5)
    old = from_plain(kind, plain(Inner(0.2)))
    assert old.extra == 0 and old != kind(0.2)
    assert content_id(old) == content_id(Inner(0.2))
    assert from_plain(kind, plain(kind(0.2))) == kind(0.2)


def test_a_run_of_the_rows_that_its_scenario_gives_has_the_id_of_before_stream_files():
    spec = RunSpec(EXPERIMENTS["digits"], URSL)
    assert replace(spec, stream=None).id == spec.id
    assert replace(spec, stream="abc").id != spec.id


def test_a_run_id_tells_method_seed_scenario_and_schedule():
    spec = RunSpec(EXPERIMENTS["digits"], URSL, schedule("smoke"), 4)
    assert spec.id.startswith("ursl-digits-smoke-s4-")
    ids = {spec.id, replace(spec, seed=5).id, override(spec, ["scenario.related=399"]).id}
    ids |= {override(spec, ["method.gate.spread=std"]).id}
    ids |= {override(spec, ["schedule.row_cap=5", "schedule.name=five"]).id}
    assert len(ids) == 5


@pytest.mark.parametrize("name", ["smoke", "demo", "short"])
def test_a_schedule_that_is_changed_wants_a_name(name):
    with pytest.raises(SpecError, match=f"schedule.name={name} stands for another schedule"):
        override(RunSpec(EXPERIMENTS["digits"], URSL, schedule(name), 0), ["schedule.share=0.5"])


def test_a_schedule_has_no_other_ones_name():
    spec = RunSpec(EXPERIMENTS["digits"], URSL, schedule("paper"), 0)
    for change in ("schedule.share=0.01", "schedule.max_updates=3"):
        with pytest.raises(SpecError, match="paper stands for another schedule"):
            override(spec, [change])
    assert override(spec, ["schedule.share=0.01", "schedule.name=brief"]).schedule.name == "brief"
    with pytest.raises(SpecError):
        override(RunSpec(EXPERIMENTS["digits"], URSL, schedule("smoke"), 0), ["schedule.name=paper"])


# ----- choices


def choices() -> list[tuple[Any, str]]:
    """Every field of every config that is declared as a choice."""
    found = {}
    for root in (URSL, EXPERIMENTS["digits"]):
        for config in configs(root):
            for name, hint in get_type_hints(type(config)).items():
                if get_origin(hint) is Literal:
                    found[type(config).__name__, name] = (config, name)
    return list(found.values())


@pytest.mark.parametrize(("config", "name"), choices(), ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_a_value_outside_a_fields_choices_is_refused_with_the_nearest(config, name):
    allowed = get_args(get_type_hints(type(config))[name])
    with pytest.raises(SpecError, match=f"unknown {name} '{allowed[0]}x'; did you mean '{allowed[0]}'"):
        replace(config, **{name: f"{allowed[0]}x"})
    with pytest.raises(SpecError, match=f"unknown {name} 'None'"):
        replace(config, **{name: None})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: replace(EXPERIMENTS["digits"], memory=30.5), "memory must be of type int, got 30.5"),
        (lambda: replace(EXPERIMENTS["digits"], labels_per_class="3"), "labels_per_class must be of type int | None"),
        (lambda: replace(EXPERIMENTS["digits"], peripheral=["letters"]), "peripheral must be a tuple of names"),
        (lambda: replace(URSL.learner, batch=2.5), "batch must be of type int, got 2.5"),
        (lambda: replace(URSL.learner, batch=True), "batch must be of type int, got True"),
        (lambda: replace(URSL.gate, eta=(1.0,)), "eta must be of type tuple"),
        (lambda: replace(URSL, head=None), "head must be of type HeadConfig, got None"),
        (lambda: Schedule("mine", share="all"), "share must be of type float, got 'all'"),
    ],
)
def test_a_value_of_another_type_is_refused_at_birth(make, says):
    with pytest.raises(SpecError) as refused:
        make()
    assert str(refused.value).startswith(says)


def test_whole_numbers_are_numbers():
    assert replace(URSL.learner, gamma=1).gamma == 1 and Schedule("mine", share=1).share == 1


def test_the_choices_are_found_at_all():
    assert len(choices()) >= 12
    assert {type(config) for config, _ in choices()} >= {type(URSL.gate), type(URSL.head), ScenarioSpec}


@pytest.mark.parametrize("config", list(configs(RunSpec(EXPERIMENTS["digits"], URSL))), ids=lambda c: type(c).__name__)
def test_specs_cannot_be_changed_in_place(config):
    with pytest.raises(FrozenInstanceError):
        setattr(config, fields(config)[0].name, None)


@dataclass(frozen=True)
class Counts:
    rows: tuple[tuple[int, ...], ...]


@pytest.mark.parametrize("wrong", [True, 2**63, 1.5, "3", None])
def test_rows_of_counts_are_taken_as_they_are_and_nothing_else_is(wrong):
    assert from_plain(Counts, {"rows": [[1, 2], [], [-3]]}) == Counts(((1, 2), (), (-3,)))
    with pytest.raises(SpecError, match=r"rows\[1\]\[2\] must be"):
        from_plain(Counts, {"rows": [[1], [1, 2, wrong]]})
