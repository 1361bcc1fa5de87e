import dataclasses

import pytest

from official_trainer.checkpoint.config import InitConfig
from official_trainer.checkpoint.init_plan import Value, plan
from official_trainer.checkpoint.init_report import Spec
from official_trainer.errors import ConfigError

MODEL = {
  "backbone/stem/kernel": (3, 4),
  "backbone/stem/bias": (4,),
  "backbone/norm/gamma": (4,),
  "head/kernel": (4, 10),
}


def planned(values, given=(), variables=MODEL, **rules):
  """Plans with values by name -> shape, or (shape, dtype), or under several names."""
  made = []
  for names, spec in values.items():
    spec = spec if isinstance(spec, Spec) else Spec(spec)
    made.append(Value(names if isinstance(names, tuple) else (names,), spec, key=str(names)))
  specs = {path: spec if isinstance(spec, Spec) else Spec(spec) for path, spec in variables.items()}
  return plan(made, specs, InitConfig(checkpoint="a.h5", **rules), key="task.init", given=given)


def lists(report):
  """Returns the lists that hold something, by name."""
  fields = [field.name for field in dataclasses.fields(report) if field.name not in ("key", "source")]
  return {name: list(getattr(report, name)) for name in fields if getattr(report, name)}


def problems(values, **rules):
  with pytest.raises(ConfigError) as raised:
    planned(values, **rules)
  return [str(problem) for problem in raised.value.problems]


def test_equal_names_and_shapes_are_loaded_and_each_of_the_rest_is_in_one_list():
  report, values = planned(
    {"backbone/stem/kernel": (3, 4), "backbone/stem/bias": (5,), "head/kernel": (4, 10), "old/kernel": (1,)},
    skip=["^head/"],
  )
  assert lists(report) == {
    "loaded": ["backbone/stem/kernel"],
    "skipped": ["head/kernel"],  # Its value is not unused: somebody said that it is not wanted.
    "missing": ["backbone/norm/gamma"],
    "mismatched": ["backbone/stem/bias"],
    "unused": ["old/kernel"],
  }
  assert {path: value.key for path, value in values.items()} == {"backbone/stem/kernel": "backbone/stem/kernel"}


def test_prefixes_are_taken_off_and_put_on_and_what_is_outside_of_them_is_in_no_list():
  report, _ = planned(
    {"resnet/stem/kernel": (3, 4), "resnet/stem/bias": (4,), "resnet/norm/gamma": (4,), "decoder/kernel": (4, 10)},
    source_prefix="resnet",
    target_prefix="backbone/",
  )
  assert lists(report) == {"loaded": ["backbone/stem/kernel", "backbone/stem/bias", "backbone/norm/gamma"]}
  assert report.loaded["backbone/norm/gamma"] == "resnet/norm/gamma"
  assert report.source == "a.h5 with 'resnet/' -> 'backbone/'"


def test_a_prefix_ends_where_a_part_of_a_name_does():
  report, _ = planned({"stem/kernel": (3, 4)}, target_prefix="backbone", skip=["bias", "gamma"])
  assert list(report.loaded) == ["backbone/stem/kernel"]
  assert problems({"resnet/a": ()}, source_prefix="res") == [
    "task.init.source_prefix: nothing in the file is below 'res/'. The nearest: resnet/."
  ]


def test_the_first_rule_of_the_name_map_that_matches_is_applied_and_no_other():
  report, _ = planned(
    {"conv_in/w": (3, 4), "conv_in/b": (4,), "bn/gamma": (4,), "fc/w": (4, 10)},
    name_map=[[r"^fc/w$", "head/kernel"], [r"^conv_in/b$", "backbone/stem/bias"], [r"^(bn|conv_in)/(\w+)", r"x/\1/\2"]],
    skip=["stem/kernel", "gamma"],
  )
  assert report.loaded == {"backbone/stem/bias": "conv_in/b", "head/kernel": "fc/w"}
  assert list(report.unused) == ["conv_in/w", "bn/gamma"]


def test_a_value_is_found_under_any_of_its_names_the_first_one_first():
  report, _ = planned(
    {("stem/kernel", "model/layer-0/kernel"): (3, 4), ("head/kernel", "model/layer-1/kernel"): (4, 10)},
    name_map=[["model/layer-0", "backbone/stem"]],
    skip=["bias", "gamma"],
  )
  assert report.loaded == {"backbone/stem/kernel": "model/layer-0/kernel", "head/kernel": "head/kernel"}


def test_floating_types_are_converted_and_others_must_be_equal():
  variables = {"a": Spec((2,)), "b": Spec((2,), "bfloat16"), "c": Spec((), "int64"), "d": Spec((), "float32")}
  values = {"a": Spec((2,), "float64"), "b": Spec((2,)), "c": Spec((), "int64"), "d": Spec((), "int32")}
  report, _ = planned(values, variables=variables)
  assert lists(report) == {"loaded": ["a", "b", "c"], "mismatched": ["d"]}


def test_a_value_of_another_shape_is_resized_where_a_rule_says_so():
  report, _ = planned(
    {"backbone/stem/kernel": (5, 4), "backbone/stem/bias": (4,), "backbone/norm/gamma": (5,), "head/kernel": (4, 9)},
    resize=[["stem", "first"], ["kernel", "second"]],
    skip=["gamma"],
  )
  assert report.resized == {"backbone/stem/kernel": "first", "head/kernel": "second"}
  assert list(report.loaded) == ["backbone/stem/kernel", "backbone/stem/bias", "head/kernel"]


def test_what_another_source_gives_is_left_to_it_also_where_this_one_does_not_fit():
  report, values = planned(
    {"stem/kernel": (3, 4), "stem/bias": (5,)},
    given={"backbone/stem/bias", "backbone/norm/gamma", "head/kernel"},
    target_prefix="backbone",
  )
  assert lists(report) == {"loaded": ["backbone/stem/kernel"], "given": ["backbone/stem/bias", "backbone/norm/gamma"]}
  assert list(values) == ["backbone/stem/kernel"]


# ---- What cannot be meant -------------------------------------------------------------------------------------------

STEM = {"stem/kernel": (3, 4), "stem/bias": (4,), "norm/gamma": (4,)}


def test_every_prefix_and_every_pattern_that_matches_nothing_is_named_with_the_nearest():
  assert problems(
    {"old/kernel": (1,)},
    name_map=[["^odl/", "backbone/"]],
    skip=["^haed/", "gamma"],
    resize=[["^backbne/", "position_embedding"]],
  ) == [
    "task.init.name_map.0: '^odl/' matches no name of the file. The nearest: old/.",
    "task.init.skip.0: '^haed/' matches no variable that is to be initialised. The nearest: head/.",
    "task.init.resize.0: '^backbne/' matches no variable that is to be initialised. The nearest: backbone/, "
    "backbone/stem/, backbone/norm/.",
  ]
  assert problems(STEM, target_prefix="bakbone") == [
    "task.init.target_prefix: no variable of the model is below 'bakbone/'. The nearest: backbone/, "
    "backbone/stem/, backbone/norm/."
  ]


def test_a_pattern_for_variables_outside_of_the_target_is_without_effect_and_refused():
  (problem,) = problems(STEM, target_prefix="backbone", skip=["^head/"])
  assert problem.startswith("task.init.skip.0: '^head/' matches no variable that is to be initialised.")


def test_a_rule_of_the_name_map_that_is_never_the_first_is_refused():
  (problem,) = problems({"fc/kernel": (4, 10)}, name_map=[["fc", "head"], ["fc/kernel", "head/kernel"]])
  assert problem == "task.init.name_map.1: 'fc/kernel' matches only names that rules before it take. Put it first."


def test_two_values_that_lead_to_one_variable_are_refused():
  (problem,) = problems({"a/kernel": (4, 10), "b/kernel": (4, 10)}, name_map=[["^[ab]/", "head/"]])
  assert problem == "task.init.name_map: 'a/kernel' and 'b/kernel' of the file both lead to 'head/kernel'."


def test_an_empty_file_is_refused():
  assert problems({}) == ["task.init.source_prefix: nothing in the file is below ''. There are none."]
