import dataclasses
from typing import Any

import pytest

from official_trainer.config.assembly import Assembly
from official_trainer.config.fields import OneOf, Positive, setting
from official_trainer.errors import DEFAULT, ConfigError, Origin


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam:
  beta: float = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(OneOf):
  adam: Adam = setting(text="Adam.", factory=Adam)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
  name: str
  every: Positive = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  width: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideModel(Model):
  depth: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  steps: Positive = 1
  optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
  ema: Adam | None = None
  rules: tuple[Rule, ...] = ()
  model: Model = dataclasses.field(default_factory=Model)
  anything: Any = None
  table: dict[str, float] = dataclasses.field(default_factory=dict)


def assemble(*layers, config=None):
  work = Assembly.of(config or Config(), Origin("experiment"))
  for index, layer in enumerate(layers):
    work.apply(layer, lambda path, index=index: Origin(f"layer {index}"))
  return work, work.finish()


def texts(work):
  return [str(problem) for problem in work.problems]


def test_later_layers_win_and_are_remembered():
  work, config = assemble({"steps": 2, "optimizer": {"adam": {"beta": 0.5}}}, {"steps": 3})
  assert config == Config(steps=3, optimizer=Optimizer(adam=Adam(beta=0.5)))
  assert work.origin("steps") == Origin("layer 1")
  assert work.origin("optimizer.adam.beta") == Origin("layer 0")
  assert work.origin("optimizer.type") == DEFAULT


def test_only_what_the_experiment_changes_is_the_experiments():
  work, _ = assemble(config=Config(steps=5, model=WideModel(depth=3)))
  assert work.provenance == {"steps": Origin("experiment"), "model.depth": Origin("experiment")}


def test_keys_of_the_class_in_use_are_known():
  _, config = assemble({"model": {"depth": 7, "width": 1}}, config=Config(model=WideModel()))
  assert config.model == WideModel(depth=7, width=1)


def test_dotted_keys_are_the_same_as_nested_ones():
  assert assemble({"optimizer.adam.beta": 0.1})[1] == assemble({"optimizer": {"adam.beta": 0.1}})[1]


def test_an_optional_group_appears_with_its_first_key_and_goes_with_null():
  work, config = assemble({"ema": {"beta": 0.5}})
  assert config.ema == Adam(beta=0.5)
  work, config = assemble({"ema": {}})
  assert config.ema == Adam()
  assert work.origin("ema.beta") == Origin("layer 0")
  work, config = assemble({"ema": {"beta": 0.5}}, {"ema": None})
  assert config.ema is None
  assert work.keys().count("ema") == 1


def test_lists_of_groups_and_tables_are_replaced_whole():
  start = Config(rules=(Rule(name="a"), Rule(name="b")), table={"x": 1.0})
  _, config = assemble({"rules": [{"name": "c", "every": "2"}], "table": {"y": "1e-3"}}, config=start)
  assert config.rules == (Rule(name="c", every=2),)
  assert config.table == {"y": 1e-3}


def test_python_values_are_normalised_like_written_ones():
  start = Config(steps=1e4, rules=[Rule(name="a")])
  assert assemble(config=start)[1] == Config(steps=10000, rules=(Rule(name="a"),))


def test_all_problems_of_all_layers_are_reported():
  work, config = assemble(
    {"stpes": 1, "steps": 0, "rules": [{"nam": "x"}], "ema": {"beta": "fast"}},
    {"model": 3, "optimizer": "adam", "beta": 1, "table": {"y": "z"}},
  )
  assert config is not None
  assert sorted(texts(work)) == [
    "beta: unknown key. Did you mean 'optimizer.adam.beta'?   (from layer 1)",
    "ema.beta: must be a number, got 'fast'.   (from layer 0)",
    "model: must be a group of settings (width), got 3.   (from layer 1)",
    "optimizer: is a choice with settings. Write 'optimizer.type=adam'.   (from layer 1)",
    "rules.0.nam: unknown key. Did you mean 'rules.0.name'?   (from layer 0)",
    "rules.0.name: is required.   (from layer 0)",
    "steps: must be at least 1, got 0.   (from layer 0)",
    "stpes: unknown key. Did you mean 'steps'?   (from layer 0)",
    "table: must be a mapping, got {y: 'z'}.   (from layer 1)",
  ]


def test_an_unknown_key_like_no_other_gets_the_list():
  work, _ = assemble({"zzz": 1})
  assert "Keys here: steps, optimizer, ema" in texts(work)[0]


def test_a_bad_value_that_is_overridden_does_no_harm():
  work, config = assemble({"steps": "many"}, {"steps": 2})
  assert work.problems == []
  assert config.steps == 2


def test_null_for_a_group_that_must_be_there_is_refused():
  work, _ = assemble({"model": None})
  assert texts(work) == ["model: must be a group of settings (width), got null.   (from layer 0)"]


def test_what_yaml_cannot_hold_is_refused():
  work, _ = assemble(config=Config(anything=object()))
  assert "anything: must be plain data" in texts(work)[0]
  assert "of type builtins.object" in texts(work)[0]


def test_a_config_of_another_class_is_refused():
  work, _ = assemble(config=Config(model=Adam()))
  assert "model: must be a Model, got a Adam of" in texts(work)[0]


def test_a_check_of_the_users_own_is_a_problem_like_others():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Even:
    size: int = 2

    def __post_init__(self):
      if self.size % 2:
        raise ValueError(f"size must be even, got {self.size}.")

  work, config = assemble({"anything": {"size": 3}}, config=Config(anything=Even()))
  assert texts(work)[0] == "anything: size must be even, got 3."
  assert config.anything is None


def test_a_subclass_without_decorator_is_named():
  class Forgotten(Model):
    depth: int = 2

  with pytest.raises(ConfigError, match="Put @dataclasses.dataclass"):
    assemble(config=Config(model=Forgotten()))


# ---- Groups by name ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
  size: int = 1
  kind: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Special(Item):
  more: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named:
  items: dict[str, Item] = dataclasses.field(default_factory=dict)


def named(*layers, start=None):
  work = Assembly.of(start or Named(), Origin("start"))
  for number, layer in enumerate(layers):
    work.apply(layer, lambda path, number=number: Origin(f"layer {number}"))
  return work, work.finish()


def test_layers_are_written_over_groups_by_their_names():
  start = Named(items={"a": Item(size=2, kind="x"), "b": Item(size=3)})
  work, built = named({"items": {"a": {"size": 5}, "c": {"kind": "new"}}}, start=start)
  assert work.problems == []
  assert built.items == {"a": Item(size=5, kind="x"), "b": Item(size=3), "c": Item(kind="new")}
  origins = {key: str(work.origin(key)) for key in work.keys()}
  assert origins == {
    "items.a.size": "layer 0", "items.a.kind": "start", "items.b.size": "start", "items.b.kind": "default",
    "items.c.size": "default", "items.c.kind": "layer 0",
  }  # fmt: skip


def test_dotted_keys_reach_into_groups_by_name_and_null_takes_one_away():
  start = Named(items={"a": Item(size=2)})
  work, built = named({"items.a.size": 4}, {"items": {"b.size": 7}}, {"items": {"a": None}}, start=start)
  assert work.problems == [] and built.items == {"b": Item(size=7)}
  assert work.keys() == ["items.b.size", "items.b.kind"]
  work, built = named({"items": {"a": None}}, start=start)
  assert work.problems == [] and built.items == {} and work.keys() == ["items"]


def test_a_group_by_name_keeps_its_class():
  work, built = named({"items": {"a": {"more": 2}}}, start=Named(items={"a": Special(size=3)}))
  assert work.problems == [] and built.items == {"a": Special(size=3, more=2)}


def test_what_is_wrong_in_groups_by_name_is_said_with_the_whole_key():
  work, _ = named({"items": {"a": {"sise": 1}, "b": 3, "c": {"size": "x"}}})
  texts = {problem.path: problem.message for problem in work.problems}
  assert "Did you mean 'items.a.size'?" in texts["items.a.sise"]
  assert "must be a group of settings (size, kind), got 3." in texts["items.b"]
  assert "must be an integer, got 'x'." in texts["items.c.size"]
  work, _ = named({"items": 3})
  assert [str(p.message) for p in work.problems] == ["must be a mapping of names to settings, got 3."]


def test_yaml_gives_groups_by_name_back():
  from official_trainer.config.base import from_yaml, to_yaml

  config = Named(items={"a": Item(size=2), "b": Item()})
  assert from_yaml(Named, to_yaml(config)) == config
  assert from_yaml(Named, to_yaml(Named())) == Named()


# ---- A value in place of a choice ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
  length: Positive = 1
  start: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warmup(OneOf):
  shorthand = ("line", "length")

  line: Line = setting(text="A line.", factory=Line)
  curve: Line = setting(text="A curve.", factory=Line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
  warmup: Warmup = setting(text="A warm-up.", factory=Warmup)


def assembled(*layers):
  work = Assembly.of(Schedule(), DEFAULT)
  for number, layer in enumerate(layers):
    work.apply(layer, lambda path, number=number: Origin(f"layer {number}, {path}"))
  return work, work.finish()


def test_a_value_alone_chooses_the_kind_that_it_is_short_for_and_has_its_own_origin():
  work, config = assembled({"warmup": {"type": "curve", "line": {"start": 0.5}}}, {"warmup": "7"})
  assert config.warmup == Warmup(type="line", line=Line(length=7, start=0.5))
  assert work.problems == []
  origins = {key: str(work.origin(f"warmup.{key}")) for key in ("type", "line.length", "line.start")}
  assert origins == {
    "type": "layer 1, warmup",
    "line.length": "layer 1, warmup",
    "line.start": "layer 0, warmup.line.start",
  }


@pytest.mark.parametrize(
  ("value", "text"),
  [
    ("long", "must be a group of settings (type, line, curve), or line.length alone, got 'long'."),
    (0, "must be a group of settings (type, line, curve), or line.length alone, got 0."),
    (None, "must be a group of settings (type, line, curve), or line.length alone, got null."),
    ("curve", "is a choice with settings. Write 'warmup.type=curve'."),
  ],
)
def test_a_value_that_is_short_for_nothing_is_refused(value, text):
  work, _ = assembled({"warmup": value})
  assert [(problem.path, problem.message) for problem in work.problems] == [("warmup", text)]


def test_a_choice_without_a_short_form_takes_no_value():
  work = Assembly.of(Config(), DEFAULT)
  work.apply({"optimizer": 3}, lambda path: DEFAULT)
  assert work.problems[0].message == "must be a group of settings (type, adam), got 3."
