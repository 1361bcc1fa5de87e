from official_trainer.config.drift import changed_keys

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
