from official_trainer.config.drift import changed_keys, problems

BEFORE = """\
experiment: digits/cnn
trainer:
  train_steps: 100
  optimizer_config:
    ema: null
task:
  model:
    filters: [32, 64]
"""


def test_the_same_config_has_no_changes():
  assert changed_keys(BEFORE, BEFORE) == []


def test_order_and_comments_are_no_changes():
  lines = BEFORE.splitlines()
  reordered = "\n".join(["# Started by hand.", *lines[5:], *lines[:5]])
  assert changed_keys(BEFORE, reordered) == []


def test_each_changed_value_is_named_with_old_and_new():
  after = BEFORE.replace("100", "200").replace("64", "65")
  assert changed_keys(BEFORE, after) == [
    "task.model.filters: [32, 64] -> [32, 65]",
    "trainer.train_steps: 100 -> 200",
  ]


def test_a_key_that_came_or_went_is_named():
  after = BEFORE.replace("train_steps", "steps")
  assert changed_keys(BEFORE, after) == [
    "trainer.steps: (not there) -> 100",
    "trainer.train_steps: 100 -> (not there)",
  ]


def test_a_group_in_place_of_nothing_is_named_by_its_keys():
  after = BEFORE.replace("ema: null", "ema: {average_decay: 0.9}")
  assert changed_keys(BEFORE, after) == [
    "trainer.optimizer_config.ema: None -> (not there)",
    "trainer.optimizer_config.ema.average_decay: (not there) -> 0.9",
  ]


def test_what_results_depend_on_may_not_change_and_the_flag_that_allows_it_is_shown():
  after = BEFORE.replace("100", "200").replace("64", "65")
  found = problems(BEFORE, after, ())
  assert [str(problem) for problem in found] == [
    "task.model.filters: was [32, 64] when this run started, now [32, 65].",
    "trainer.train_steps: was 100 when this run started, now 200.",
    "--allow_config_change=task.model.filters,trainer.train_steps: continues this run with the changes; another"
    " --model_dir begins a new one.",
  ]


def test_allowed_keys_and_groups_may_change():
  after = BEFORE.replace("100", "200").replace("64", "65")
  assert problems(BEFORE, after, ["task.model", "trainer.train_steps"]) == []


def test_intervals_may_change_freely():
  before = BEFORE + "runtime:\n  grace_secs: 10.0\n"
  assert problems(before, before.replace("10.0", "20.0"), ()) == []


def test_allowing_a_key_that_is_not_there_is_a_mistake():
  found = problems(BEFORE, BEFORE, ["trainer.trian_steps"])
  assert "names 'trainer.trian_steps', which is no key of this config. Did you mean 'trainer.train_steps'?" in str(
    found[0]
  )
