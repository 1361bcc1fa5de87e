import io

from official_trainer.config import describe, loading


def loaded(**arguments):
  return loading.load(experiment="digits/cnn_ema", params_override="trainer.train_steps=7", **arguments)


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_every_value_is_shown_with_its_origin():
  rows = {key: (value, origin) for key, value, origin in describe.rows(loaded())}
  assert rows["trainer.train_steps"] == ("7", "--params_override")
  assert rows["trainer.max_to_keep"] == ("5", "default")
  assert rows["task.name"] == ("null", "default")
  assert "digits/config.py" in rows["trainer.steps_per_loop"][1]
  assert rows["trainer.best_checkpoint_metric_comp"][0].startswith("higher (because 'accuracy'")


def test_kinds_that_are_not_chosen_and_names_without_effect_are_left_out():
  keys = [key for key, _, _ in describe.rows(loaded())]
  assert "trainer.optimizer_config.optimizer.adam.beta_1" in keys
  assert not [key for key in keys if ".lamb." in key or "use_tpu_mp_strategy" in key]


def test_the_changed_values_are_those_that_a_layer_set_or_that_follow():
  origins = {origin for _, _, origin in describe.rows(loaded(), changed_only=True)}
  assert "default" not in origins
  assert {"--params_override", "derived"} < origins


def test_a_file_gets_plain_lines_and_a_terminal_a_table():
  plain, terminal = io.StringIO(), Terminal()
  describe.print_rows(loaded(), plain, changed_only=True)
  describe.print_rows(loaded(), terminal, changed_only=True)
  line = next(line for line in plain.getvalue().splitlines() if "train_steps" in line)
  assert line.split() == ["trainer.train_steps", "=", "7", "#", "--params_override"]
  assert "\x1b" not in plain.getvalue()
  assert "digits/cnn_ema" in terminal.getvalue()
