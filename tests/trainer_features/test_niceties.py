"""What makes a trainer pleasant: no folder needed, parts by name, its state within reach."""

import itertools
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from official_trainer import runner as runner_module
from official_trainer import train as program
from official_trainer.atomic import write_text
from official_trainer.checkpoint import manifest
from official_trainer.config.loading import load
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.peers import Alone
from official_trainer.distribute.strategy import configure_devices
from official_trainer.errors import ConfigError, ExitCode, Preempted
from official_trainer.optim.config import CosineLrConfig, LinearWarmupConfig, LrConfig, OptimizationConfig, WarmupConfig
from official_trainer.run import session as session_module
from official_trainer.runner import Runner
from official_trainer.trainer import Trainer
from tests import small_tasks, tiny
from tests.test_access import build

BEST = {
  "trainer.best_checkpoint_export_subdir": "best_ckpt",
  "trainer.best_checkpoint_eval_metric": "accuracy",
}


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda rows, path, title: write_text(path, title))


def loaded(mode="train_and_eval", **settings):
  text = ",".join(f"{key}={value}" for key, value in settings.items()) or None
  return load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=text, mode=mode)


def run(folder, mode="train_and_eval", **settings):
  settings = {"trainer.train_steps": 2, "runtime.seed": 3, **settings}
  return Runner(loaded(mode, **settings), mode=mode, model_dir=folder and str(folder), quiet=True).run()


# ---- Devices and seeds -----------------------------------------------------------------------------------------------


def test_t5_more_devices_than_there_are_are_refused_with_both_numbers():
  found = len(tf.config.list_logical_devices("CPU"))
  with pytest.raises(ConfigError, match=f"asked for {found + 1} logical CPU devices, but .* runs with {found}"):
    configure_devices(RuntimeConfig(num_virtual_devices=found + 1))


class Second(Alone):
  """The second of two processes, whose chief has drawn the seed 99."""

  num, index, names = 2, 1, ("chief", "worker 1")

  def from_chief(self, value):
    self.drawn = value
    return 99


def test_t6_a_seed_that_nobody_gave_is_drawn_by_the_chief_recorded_and_reproduces_the_run(tmp_path, monkeypatch):
  records = []
  monkeypatch.setattr(runner_module, "draw_seed", lambda: 7)
  monkeypatch.setattr(runner_module.RunRecord, "save", lambda self, folder: records.append(self.seed))
  with monkeypatch.context() as patch:
    patch.setattr(runner_module, "build_peers", Second)
    seedless = Runner(loaded(**{"trainer.train_steps": 2}), mode="train", model_dir=str(tmp_path / "a"), quiet=True)
    found = seedless.run()
  assert records == [99]
  again = run(tmp_path / "b", mode="train", **{"runtime.seed": 99})
  assert found.state.host.history.to_json() == again.state.host.history.to_json()
  for one, other in zip(found.model.get_weights(), again.model.get_weights(), strict=True):
    np.testing.assert_array_equal(one, other)


# ---- What is kept ----------------------------------------------------------------------------------------------------


def test_t8_t65_an_experiment_with_no_other_flag_runs_and_writes_nothing(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  code = program.main(["train", "--experiment=tiny"], flags.FlagValues())
  said = capsys.readouterr().err
  assert code == 0, said
  assert "there is no --model_dir: nothing of this run is kept" in said
  assert "step 6/6  validation" in said
  assert os.listdir(tmp_path) == []
  in_memory = tf.io.gfile.listdir("ram://") if tf.io.gfile.isdir("ram://") else []
  assert [name for name in in_memory if "without-model_dir" in name] == []


def test_a_run_that_keeps_nothing_is_the_run_that_keeps_everything(tmp_path):
  settings = {"task.dropout": 0.5, "task.hidden": "[4]"}
  kept, lost = run(tmp_path, **settings), run(None, **settings)
  assert lost.state.host.history.to_json() == kept.state.host.history.to_json()
  assert lost.metrics == kept.metrics
  assert (lost.model_dir, lost.history_path, lost.checkpoint_path, lost.config_path) == ("", None, None, None)


RECORDS = {"parameters.txt", "params.yaml", "params_provenance.yaml", "run.json", "time.json"}
CHECKPOINTS = {"checkpoint"} | {
  f"ckpt-{step}.{part}" for step in (0, 2) for part in ("index", "manifest.json", "data-00000-of-00001")
}
CURVES = {"history.jsonl", "history.png", "timings.jsonl", "train", "validation"}


@pytest.mark.parametrize(("saves", "writes"), [*itertools.product([True, False], repeat=2)])
def test_t9_d32_each_combination_of_the_switches_leaves_exactly_its_files(tmp_path, saves, writes):
  settings = {"trainer.save_checkpoints": saves, "trainer.write_summaries": writes}
  result = run(tmp_path, **settings, **(BEST if saves else {}))
  expected = RECORDS | (CHECKPOINTS | {"best_ckpt"} if saves else set()) | (CURVES if writes else set())
  assert set(os.listdir(tmp_path)) == expected
  assert (result.checkpoint_path is not None, result.history_path is not None) == (saves, writes)
  assert [row[:2] for row in result.state.host.history.rows] == [(2, "train"), (2, "validation")]


def test_t64_checkpoints_that_could_not_be_saved_are_refused_with_both_fields(tmp_path):
  for key, value in (("trainer.checkpoints_at", "[1]"), ("trainer.recovery_max_trials", 2)):
    with pytest.raises(ConfigError, match=rf"{key}: needs checkpoints, but there is no --model_dir\."):
      run(None, **{key: value})
    with pytest.raises(ConfigError, match=rf"{key}: needs checkpoints, but trainer\.save_checkpoints is false\."):
      run(tmp_path, **{key: value, "trainer.save_checkpoints": False})
  with pytest.raises(ConfigError, match=r"trainer\.best_checkpoint_export_subdir: needs checkpoints"):
    run(None, **BEST)
  assert os.listdir(tmp_path) == []


def test_modes_that_need_a_folder_say_so_and_a_checkpoint_is_evaluated_without_one(tmp_path):
  with pytest.raises(ConfigError, match="--model_dir: must be given: the folder of the run"):
    run(None, mode="continuous_eval")
  trained = run(tmp_path / "a")
  found = Runner(loaded("eval"), mode="eval", checkpoint=trained.checkpoint_path, quiet=True).run()
  assert found.metrics == trained.metrics


def test_a_stopped_run_without_checkpoints_says_that_nothing_was_saved_and_asks_for_no_restart():
  class Stopped(Runner):
    def build_trainer(self, task):
      self._stop.set("SIGTERM", ExitCode.RESTART)
      return super().build_trainer(task)

  with pytest.raises(Preempted, match="after step 0; nothing was saved, as it was configured") as stopped:
    Stopped(loaded(), mode="train", quiet=True).run()
  assert stopped.value.code == ExitCode.ERROR


def test_a_run_that_stops_to_save_goes_on_from_what_it_has(tmp_path):
  run(tmp_path, mode="train")
  longer = {"trainer.train_steps": 4, "trainer.save_checkpoints": False, "runtime.seed": 3}
  again = Runner(
    loaded("train", **longer), mode="train", model_dir=str(tmp_path), allow_config_change=["trainer"], quiet=True
  ).run()
  assert again.step == 4
  assert tiny.committed(tmp_path) == [0, 2]


def test_t62_a_run_returns_its_model_logs_and_paths_as_the_files_have_them(tmp_path):
  result = run(tmp_path, **BEST)
  rows = [json.loads(line) for line in open(result.history_path, encoding="utf-8")]
  (last,) = [row["metrics"] for row in rows if (row["step"], row["mode"]) == (2, "validation")]
  assert result.metrics == last
  assert result.checkpoint_path == manifest.checkpoint_prefix(str(tmp_path), 2)
  saved = tf.train.load_checkpoint(result.checkpoint_path)
  key = "model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
  np.testing.assert_array_equal(result.model.get_weights()[0], saved.get_tensor(key))
  again = load(experiment=None, config_files=[result.config_path])
  assert (again.name, again.config.runtime.seed, again.config.trainer.train_steps) == ("tiny", 3, 2)


def test_t63_a_folder_may_be_on_any_file_system_of_tensorflow(tmp_path):
  folder = "ram://niceties/run"
  settings = {**BEST, "task.dropout": 0.5, "task.hidden": "[4]"}
  run(folder, **settings)
  resumed = Runner(
    loaded(**{**settings, "trainer.train_steps": 4, "runtime.seed": 3}),
    mode="train_and_eval",
    model_dir=folder,
    allow_config_change=["trainer.train_steps"],
    quiet=True,
  ).run()
  local = run(tmp_path, **settings, **{"trainer.train_steps": 4})
  for name in ("history.jsonl", "best_ckpt/info.json"):
    with tf.io.gfile.GFile(f"{folder}/{name}") as file:
      assert file.read() == (tmp_path / name).read_text("utf-8")
  copied = tmp_path / "copied"
  copied.mkdir()
  for path in manifest.data_files(resumed.checkpoint_path):
    tf.io.gfile.copy(path, str(copied / os.path.basename(path)))
  tiny.assert_same_contents(copied / "ckpt-4", local.checkpoint_path)
  tf.io.gfile.rmtree("ram://niceties")


# ---- Parts by name ---------------------------------------------------------------------------------------------------


class Counting(Trainer):
  """A trainer of the user's own."""

  def train_loop_end(self):
    return {**super().train_loop_end(), "loops": 1.0}


def test_t59_the_class_that_the_config_names_is_the_trainer(tmp_path):
  name = "tests.trainer_features.test_niceties:Counting"
  result = run(tmp_path, mode="train", **{"trainer.trainer_class": name})
  assert result.state.host.history.rows[0].metrics["loops"] == 1.0
  assert f"trainer_class: {name}" in (tmp_path / "params.yaml").read_text("utf-8")


def remember(loaded, *, mode, model_dir):
  """Runs nothing."""
  return loaded.config, mode, model_dir


def test_t60_a_runner_by_name_gets_config_and_folder_in_place_of_the_loop(tmp_path):
  name = "tests.trainer_features.test_niceties:remember"
  config, mode, folder = run(tmp_path, mode="train", **{"trainer.runner": name, "trainer.train_steps": "2 epochs"})
  assert (config.trainer.train_steps, mode, folder) == ("2 epochs", "train", str(tmp_path))
  assert os.listdir(tmp_path) == []
  arguments = ["train", "--experiment=tiny", f"--runner={name}", "--mode=eval", "--quiet"]
  assert program.main(arguments, flags.FlagValues()) == 0


# ---- The first loop and the learning rate ----------------------------------------------------------------------------


def test_t43_a_first_loop_of_one_step_reports_and_the_grid_stays(tmp_path):
  settings = {"trainer.train_steps": 8, "trainer.steps_per_loop": 4, "trainer.validation_interval": 4}
  plain = run(tmp_path / "plain", **settings)
  first = run(tmp_path / "first", **settings, **{"trainer.first_loop_steps": 1})
  asked = run(tmp_path / "asked", **settings, **{"trainer.first_loop_steps": 1, "trainer.evaluate_first_loop": True})
  assert tiny.steps_of(tmp_path / "plain", "train") == [4, 8]
  assert tiny.steps_of(tmp_path / "first", "train") == [1, 4, 8]
  assert tiny.steps_of(tmp_path / "first", "validation") == [4, 8]
  assert tiny.steps_of(tmp_path / "asked", "validation") == [1, 4, 8]
  for result in (first, asked):
    for one, other in zip(result.model.get_weights(), plain.model.get_weights(), strict=True):
      np.testing.assert_array_equal(one, other)
    assert result.state.host.history.last("train") == plain.state.host.history.last("train")


def test_t69_the_learning_rate_of_step_1_is_the_schedule_at_0():
  schedule = LrConfig(type="cosine", cosine=CosineLrConfig(initial_learning_rate=0.5, decay_steps=4))
  base = small_tasks.optimization()
  warm = WarmupConfig(type="linear", linear=LinearWarmupConfig(warmup_learning_rate=0.25, warmup_steps=2))
  for warmup, at_0 in ((WarmupConfig(), 0.5), (warm, 0.25)):
    optimizer = OptimizationConfig(optimizer=base.optimizer, learning_rate=schedule, warmup=warmup)
    trainer = small_tasks.build_trainer(small_tasks.experiment(optimizer_config=optimizer), evaluate=False)
    assert float(trainer.optimizer.learning_rate(0) if callable(trainer.optimizer.learning_rate) else at_0) == at_0
    assert small_tasks.train(trainer, 1)["learning_rate"] == at_0


def test_t31_steps_run_line_by_line_are_those_of_the_graph():
  def weights_after_five(**trainer):
    built = small_tasks.build_trainer(small_tasks.experiment(**trainer), evaluate=False)
    small_tasks.train(built, 5)
    return built.get_weights()

  graph = weights_after_five()
  for options in (
    {"train_tf_while_loop": False},
    {"train_tf_while_loop": False, "train_tf_function": False},
  ):
    for one, other in zip(weights_after_five(**options), graph, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


# ---- The state within reach ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer():
  """Two replicas after two steps, with statistics, masks and averages. Its tests leave it as it is."""
  built = build(num_replicas=2)
  small_tasks.train(built, 2)
  return built


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The model_dir of a run of eight steps."""
  path = tmp_path_factory.mktemp("run")
  small_tasks.session(build(), path, "train").run()
  return path


def test_t57_setting_the_weights_that_were_got_changes_no_bit_on_any_replica(trainer):
  before = small_tasks.bits(trainer)
  weights = trainer.get_weights()
  assert len(weights) == len(trainer.model.variables)
  trainer.set_weights([np.zeros_like(weight) for weight in weights])
  assert not any(np.any(weight) for weight in trainer.get_weights())
  assert small_tasks.bits(trainer)["slots"] == before["slots"]
  trainer.set_weights(weights)
  assert small_tasks.bits(trainer) == before


def test_t58_changing_a_snapshot_changes_nothing_in_training(trainer):
  before = small_tasks.bits(trainer)
  snapshot = trainer.snapshot()
  assert snapshot.step == 2
  assert [len(part) for part in (snapshot.weights, snapshot.averages)] == [len(trainer.model.variables)] * 2
  for array in (*snapshot.weights, *snapshot.averages, *snapshot.slots):
    array[...] = 9
  snapshot.host["best"]["x"] = {"y": 1.0}
  snapshot.host["history"].clear()
  assert small_tasks.bits(trainer) == before
  assert trainer.state.host.best == {}
  assert trainer.snapshot().step == 2


@pytest.mark.parametrize("training", [False, True])
def test_t68_computing_a_loss_changes_no_bit(trainer, training):
  before = small_tasks.bits(trainer)
  first = trainer.compute_loss(small_tasks.rows(6, seed=2), training=training)
  assert np.isfinite(first)
  assert trainer.compute_loss(small_tasks.rows(6, seed=2), training=training) == first
  assert small_tasks.bits(trainer) == before


def trained(trainer, num_steps):
  small_tasks.train(trainer, num_steps)
  return small_tasks.bits(trainer)


def test_t35_a_trainer_begins_another_run_without_tracing_its_steps_again(folder):
  trainer = build()
  first = trained(trainer, 4)
  small_tasks.evaluate(trainer)
  traces = dict(trainer.task.traces)
  assert traces["train"] > 0 < traces["validation"]
  trainer.state.host.history.append(4, "train", {"loss": 1.0})
  trainer.leave_out([(1, 2)])

  assert trainer.reset() == 0
  assert len(trainer.state.host.history) == 0
  assert trained(trainer, 4) == first
  assert trainer.reset(str(folder)) == 8
  assert len(trainer.state.host.history) > 0
  small_tasks.evaluate(trainer)
  assert trainer.reset() == 0
  assert trained(trainer, 4) == first
  assert trainer.task.traces == traces
