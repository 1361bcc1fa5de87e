import dataclasses
import textwrap

import pytest

from official_trainer import registry
from official_trainer.config import loading
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import DEFAULT, ConfigError, Origin

NAMES = registry.list_experiments()


def write(folder, name, text):
  path = folder / name
  path.write_text(textwrap.dedent(text))
  return str(path)


def problems(**arguments):
  with pytest.raises(ConfigError) as raised:
    loading.load(**arguments)
  return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize("name", NAMES)
def test_every_registered_config_builds_dumps_and_reloads_from_its_file_alone(tmp_path, name):
  loaded = loading.load(experiment=name, mode="train_and_eval")
  path = write(tmp_path, "params.yaml", loaded.to_yaml())
  again = loading.load(experiment=None, config_files=[path])
  assert again.config == loaded.config
  assert again.name == loaded.name
  assert again.to_yaml() == loaded.to_yaml()
  assert again.provenance["trainer.train_steps"].file == path


def test_layers_win_in_their_order(tmp_path):
  def steps(**arguments):
    loaded = loading.load(experiment="digits/cnn", **arguments)
    return loaded.config.trainer.train_steps, loaded.provenance["trainer.train_steps"]

  one = write(tmp_path, "one.yaml", "trainer: {train_steps: 1}")
  two = write(tmp_path, "two.yaml", "trainer:\n  train_steps: 2e0\n")
  gin = write(tmp_path, "x.gin", "\ntrainer.train_steps = 3")
  assert steps()[1].layer == "experiment"
  assert steps()[1].file.endswith("experiments/digits/config.py")
  assert steps(config_files=[one]) == (1, Origin("config_file", one, 1))
  assert steps(config_files=[one, two]) == (2, Origin("config_file", two, 2))
  assert steps(config_files=[two, one])[0] == 1
  assert steps(config_files=[one], gin_files=[gin]) == (3, Origin("gin", gin, 2))
  assert steps(gin_files=[gin], gin_params=["trainer.train_steps = 4"]) == (4, Origin("gin"))
  override = "trainer.train_steps=1e4"
  assert steps(gin_files=[gin], params_override=override) == (10000, Origin("--params_override"))
  assert steps(params_override=[override, "trainer: {train_steps: 6}"])[0] == 6


def test_untouched_values_are_defaults():
  loaded = loading.load(experiment="digits/cnn")
  assert loaded.provenance["trainer.max_to_keep"] == DEFAULT
  assert "trainer.max_to_keep" not in loaded.changed()
  assert "trainer.steps_per_loop" in loaded.changed()


def test_an_absent_tpu_flag_leaves_what_the_file_says(tmp_path):
  path = write(tmp_path, "a.yaml", "runtime: {tpu: local}")
  loaded = loading.load(experiment="digits/cnn", config_files=[path])
  assert loaded.config.runtime.tpu == "local"
  loaded = loading.load(experiment="digits/cnn", config_files=[path], tpu="other")
  assert loaded.config.runtime.tpu == "other"
  assert loaded.provenance["runtime.tpu"] == Origin("--tpu")


def test_the_data_service_flag_acts_on_the_training_data_only():
  loaded = loading.load(experiment="digits/cnn", tf_data_service="grpc://host:5050")
  assert loaded.config.task.train_data.enable_tf_data_service
  assert loaded.config.task.train_data.tf_data_service_address == "grpc://host:5050"
  assert not loaded.config.task.validation_data.enable_tf_data_service


def test_a_rate_without_a_dot_is_a_number_by_file_and_by_flag(tmp_path):
  key = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
  path = write(tmp_path, "a.yaml", f"{key}: 1e-3")
  for arguments in ({"config_files": [path]}, {"params_override": f"{key}=1e-3"}):
    loaded = loading.load(experiment="digits/cnn", **arguments)
    rate = loaded.config.trainer.optimizer_config.learning_rate.cosine.initial_learning_rate
    assert rate == 0.001
    assert type(rate) is float


def test_all_problems_are_reported_together_each_with_its_origin(tmp_path):
  path = write(
    tmp_path,
    "fast.yaml",
    """\
    trainer:
      steps_per_loop: 0
      trian_steps: 3
    task:
      model: {filters: many}
    """,
  )
  found = problems(
    experiment="digits/cnn",
    config_files=[path, "nowhere.yaml"],
    gin_params=["runtime.seed = 1.5"],
    params_override=[
      "trainer.best_checkpoint_metric_comp=max,trainer.best_checkpoint_eval_metric=",
      "trainer.checkpoint_interval=10.5,oops,trainer.validation_interval=abc",
    ],
  )
  assert sorted(found) == sorted(
    [
      "--config_file: cannot read 'nowhere.yaml': No such file or directory. "
      "Give the path of a YAML or JSON file on this machine.",
      "oops: is not of the form key=value. Put lists in [ ], and text with commas in quotes: "
      "a.b='x,y'.   (from --params_override)",
      f"trainer.steps_per_loop: must be at least 1, got 0.   (from {path}:2)",
      f"trainer.trian_steps: unknown key. Did you mean 'trainer.train_steps'?   (from {path}:3)",
      f"task.model.filters: must be a list of integers, got 'many'.   (from {path}:5)",
      "runtime.seed: must be an integer or null, got 1.5.   (from gin)",
      "trainer.best_checkpoint_metric_comp: must be one of 'higher', 'lower' or null, got 'max'."
      "   (from --params_override)",
      "trainer.checkpoint_interval: must be a whole number of steps, or a text such as '90 epochs', got 10.5."
      "   (from --params_override)",
      "trainer.validation_interval: must be a number of steps, '90 epochs', '1.2M examples' or '5%' of "
      "trainer.train_steps, got 'abc'.   (from --params_override)",
      "trainer.best_checkpoint_eval_metric: must name a metric, because "
      "trainer.best_checkpoint_export_subdir is 'best_ckpt'.   (from --params_override)",
    ]
  )


def test_a_model_garden_file_loads_for_a_registered_experiment(tmp_path):
  path = write(
    tmp_path,
    "params.yaml",
    """\
    runtime:
      all_reduce_alg: null
      batchnorm_spatial_persistent: false
      default_shard_dim: -1
      distribution_strategy: one_device
      mixed_precision_dtype: float32
      num_gpus: 0
      task_index: -1
      worker_hosts: null
    task:
      differential_privacy_config: null
      train_data: {global_batch_size: 32, cache: true, tfds_name: mnist, tfds_split: train}
    trainer:
      allow_tpu_summary: false
      best_checkpoint_metric_comp: higher
      optimizer_config:
        ema: {average_decay: 0.999, clipnorm: null, clipvalue: null, global_clipnorm: null,
              dynamic_decay: true, name: ExponentialMovingAverage, start_step: 0,
              trainable_weights_only: true}
        learning_rate:
          stepwise: {boundaries: [10, 20], name: PiecewiseConstantDecay, offset: 0,
                     values: [0.1, 0.01, 1.0e-03]}
          type: stepwise
        optimizer:
          sgd: {clipnorm: null, decay: 0.0, momentum: 0.9, name: SGD, nesterov: true}
          type: sgd
        warmup: {linear: {warmup_steps: 5, warmup_learning_rate: 0}, type: linear}
      train_steps: 30
    """,
  )
  loaded = loading.load(experiment="digits/cnn", config_files=[path], mode="train")
  optimization = loaded.config.trainer.optimizer_config
  assert optimization.optimizer.get().momentum == 0.9
  assert optimization.learning_rate.get().values == (0.1, 0.01, 0.001)
  assert optimization.ema.average_decay == 0.999
  assert loaded.config.task.train_data.tfds_name == "mnist"


def test_a_model_garden_key_without_effect_is_refused_unless_at_its_default():
  found = problems(experiment="digits/cnn", params_override="runtime.use_tpu_mp_strategy=true")
  assert found == [
    "runtime.use_tpu_mp_strategy: has no effect here and must stay false, got true.\n"
    "  Models split over cores are not supported yet.   (from --params_override)"
  ]


def test_name_in_a_file_and_in_the_flag_must_agree(tmp_path):
  path = write(tmp_path, "a.yaml", "experiment: digits/mlp\n")
  assert problems(experiment="digits/cnn", config_files=[path]) == [
    f"experiment: is 'digits/mlp' here but 'digits/cnn' by --experiment. Leave one of them out.   (from {path}:1)"
  ]
  assert loading.load(experiment="digits/mlp", config_files=[path]).name == "digits/mlp"


def test_the_name_cannot_be_overridden_like_a_setting():
  found = problems(experiment="digits/cnn", params_override="experiment=digits/mlp")
  assert found[0].startswith("experiment: unknown key.")


def test_without_any_name_the_error_says_how_to_give_one(tmp_path):
  assert "--list_experiments" in problems(experiment=None)[0]


def test_a_kind_that_is_not_chosen_but_set_survives_the_file(tmp_path):
  override = "trainer.optimizer_config.optimizer.sgd.momentum=0.0"
  loaded = loading.load(experiment="digits/cnn", params_override=override)
  assert "sgd" in loaded.to_yaml()


def test_a_value_drawn_later_is_recorded_with_its_origin(tmp_path):
  loaded = loading.load(experiment="digits/cnn").with_value("runtime.seed", 7, origin="drawn")
  assert loaded.config.runtime.seed == 7
  assert loaded.provenance["runtime.seed"] == Origin("drawn")
  assert loaded.provenance["trainer.steps_per_loop"].layer == "experiment"
  assert "runtime.seed: drawn" in loaded.provenance_text()
  with pytest.raises(ConfigError, match="runtime.seed: must be at least 0"):
    loaded.with_value("runtime.seed", -1, origin="drawn")


def test_an_open_direction_is_derived_from_the_name_of_the_metric():
  loaded = loading.load(
    experiment="digits/cnn",
    params_override="trainer.best_checkpoint_eval_metric=validation_loss",
  )
  assert loaded.config.trainer.best_checkpoint_metric_comp is None
  assert loaded.derived() == {"trainer.best_checkpoint_metric_comp": "lower (because 'validation_loss' ends in 'loss')"}


def test_training_for_no_step_is_refused_when_the_mode_trains():
  override = "trainer.train_steps=0"
  assert problems(experiment="digits/cnn", params_override=override, mode="train") == [
    "trainer.train_steps: must be at least 1 to train, got 0.   (from --params_override)"
  ]
  loading.load(experiment="digits/cnn", params_override=override, mode="eval")
  loading.load(experiment="digits/cnn", params_override=override)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
  units: int = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserTaskConfig(TaskConfig):
  head: HeadConfig = dataclasses.field(default_factory=HeadConfig)
  classes: tuple[str, ...] = ("a",)


def user_experiment() -> ExperimentConfig:
  return ExperimentConfig(task=UserTaskConfig(), trainer=TrainerConfig(train_steps=1))


@pytest.fixture
def registered(monkeypatch):
  monkeypatch.setattr(registry, "_registered", {})
  return registry.register_experiment


def test_a_users_own_fields_are_set_like_all_others(registered, tmp_path):
  registered("user/own")(user_experiment)
  loaded = loading.load(experiment="user/own", params_override="task.head.units=3,task.classes=[b, c]")
  assert loaded.config.task == UserTaskConfig(head=HeadConfig(units=3), classes=("b", "c"))
  path = write(tmp_path, "params.yaml", loaded.to_yaml())
  assert loading.load(experiment=None, config_files=[path]).config == loaded.config
  found = problems(experiment="user/own", params_override="task.head.unit=3")
  assert "Did you mean 'task.head.units'?" in found[0]


def test_what_the_experiment_itself_gets_wrong_is_named_with_its_place(registered):
  def wrong():
    return ExperimentConfig(trainer=TrainerConfig(steps_per_loop=0))

  registered("user/wrong")(wrong)
  found = problems(experiment="user/wrong")
  assert found[0].startswith("trainer.steps_per_loop: must be at least 1, got 0.   (from experiment,")
  assert "test_loading.py:" in found[0]


def test_an_experiment_must_return_our_config(registered):
  registered("user/dict")(dict)
  assert "must return an ExperimentConfig of official_trainer, got dict" in problems(experiment="user/dict")[0]
