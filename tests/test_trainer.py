import dataclasses
import types

import numpy as np
import orbit
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.data.padding import Batch
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.optim.config import EmaConfig
from official_trainer.optim.ema import Ema, NoEma
from official_trainer.trainer import Trainer
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def test_m18_m20_m22_it_is_both_halves_of_orbit_and_shows_its_parts():
  config = small_tasks.experiment()
  trainer = small_tasks.build_trainer(config)
  assert isinstance(trainer, orbit.StandardTrainer) and isinstance(trainer, orbit.StandardEvaluator)
  assert trainer.config is config
  assert trainer.task.task_config is config.task
  assert trainer.checkpoint.model is trainer.model and trainer.checkpoint.optimizer is trainer.optimizer
  assert trainer.seed == 3
  assert [metric.name for metric in trainer.train_metrics] == ["mae"]
  assert [metric.name for metric in trainer.validation_metrics] == ["mae"]
  assert trainer.train_metrics[0] is not trainer.validation_metrics[0]
  assert (trainer.train_loss.name, trainer.validation_loss.name) == ("training_loss", "validation_loss")
  assert trainer.checkpoint_exporter is None
  assert isinstance(trainer.state.ema, NoEma)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_it_works_without_a_loop(num_replicas):
  config = small_tasks.experiment(optimizer_config=small_tasks.optimization("adam", 0.05, ema=EmaConfig()))
  trainer = small_tasks.build_trainer(config, num_replicas=num_replicas)
  first = small_tasks.train(trainer, 5)
  for _ in range(5):
    last = small_tasks.train(trainer, 20)
  assert first.keys() == {"mae", "training_loss", "learning_rate"}
  assert last["training_loss"] < first["training_loss"] / 2
  assert trainer.state.step == 105
  assert small_tasks.evaluate(trainer).keys() == {"mae", "validation_loss"}


def test_m10_m20_training_alone_and_evaluating_alone():
  class Asked(small_tasks.Regression):
    """Notes which data are built."""

    def build_source(self, params):
      built.append("train" if params.is_training else "validation")
      return super().build_source(params)

  built: list[str] = []
  trainer = small_tasks.build_trainer(task=Asked, evaluate=False)
  small_tasks.train(trainer, 2)
  assert set(built) == {"train"}
  built.clear()
  evaluator = small_tasks.build_trainer(task=Asked, train=False)
  assert small_tasks.evaluate(evaluator)["validation_loss"] > 0
  assert set(built) == {"validation"}
  config = small_tasks.experiment()
  task = small_tasks.Regression(config.task)
  without_optimizer = Trainer(config, task, task.build_model(), None, train=False)
  assert without_optimizer.optimizer is None
  assert small_tasks.evaluate(without_optimizer)["validation_loss"] > 0


def test_m12_what_a_config_lacks_is_named():
  task = small_tasks.Regression(None)
  model = task.build_model()
  with pytest.raises(AttributeError, match="must have the attribute `trainer`"):
    Trainer(types.SimpleNamespace(task=1), task, model, None)
  config = types.SimpleNamespace(trainer=small_tasks.experiment().trainer, task=types.SimpleNamespace())
  with pytest.raises(AttributeError, match="`task.train_data`, or a dataset must be given"):
    Trainer(config, task, model, None)
  with pytest.raises(AttributeError, match="`task.validation_data`, or a dataset must be given"):
    Trainer(config, task, model, None, train=False)


def test_m17_metrics_with_the_same_name_are_refused():
  class Twice(small_tasks.Regression):
    def build_metrics(self, training=True):
      return [tf_keras.metrics.Mean(name="a"), tf_keras.metrics.Mean(name="a")]

  class LikeTheLoss(small_tasks.Regression):
    def build_metrics(self, training=True):
      return [tf_keras.metrics.Mean(name="training_loss" if training else "other")]

  with pytest.raises(ValueError, match=r"\['a'\] are there more than once"):
    small_tasks.build_trainer(task=Twice)
  with pytest.raises(ValueError, match=r"\['training_loss'\] are there more than once"):
    small_tasks.build_trainer(task=LikeTheLoss)


# ---- Hooks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_m24_the_inputs_of_a_training_step_can_be_changed(num_replicas):
  class Doubling(Trainer):
    def next_train_inputs(self, iterator):
      batch = super().next_train_inputs(iterator)
      doubled = tf.nest.map_structure(lambda tensor: tf.concat([tensor, tensor], axis=0), batch.inputs)
      return Batch(doubled, batch.mask)

  class Counting(small_tasks.Regression):
    sizes: list = []

    def train_step(self, inputs, *args, **kwargs):
      self.sizes.append(inputs[1].shape[0])
      return super().train_step(inputs, *args, **kwargs)

  Counting.sizes = []
  doubled = small_tasks.build_trainer(task=Counting, trainer_class=Doubling, num_replicas=num_replicas)
  plain = small_tasks.build_trainer(num_replicas=num_replicas)
  small_tasks.train(doubled, 3)
  small_tasks.train(plain, 3)
  assert Counting.sizes == [8 // num_replicas] * num_replicas
  assert doubled.train_loss.count.numpy() == 2 * plain.train_loss.count.numpy()
  for weight, expected in zip(doubled.model.get_weights(), plain.model.get_weights(), strict=True):
    np.testing.assert_allclose(weight, expected, rtol=1e-5)


class Gathering(small_tasks.Regression):
  """Gathers on the host what the steps pass through and what the replicas return."""

  def validation_step(self, inputs, *args, **kwargs):
    logs = super().validation_step(inputs, *args, **kwargs)
    return {**logs, "targets": inputs[1]}

  def aggregate_logs(self, state, step_outputs):
    state = state or {"names": [], "targets": []}
    state["names"] += [name.decode() for name in step_outputs["names"].numpy()]
    state["targets"] += [part.numpy()[:, 0] for part in step_outputs["targets"]]
    return state

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {"gathered": float(np.sum(np.concatenate(aggregated_logs["targets"]))), "step": int(global_step)}


class Naming(Trainer):
  def next_eval_inputs(self, iterator):
    batch, passthrough = super().next_eval_inputs(iterator)
    assert passthrough == {}
    return batch, {"names": tf.strings.as_string(batch.inputs[1][:, 0])}


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_m27_m31_m34_strings_pass_an_evaluation_by_on_the_host(num_replicas):
  task = None

  def build(params):
    nonlocal task
    task = Gathering(params, validation=small_tasks.rows(8))
    return task

  trainer = small_tasks.build_trainer(task=build, trainer_class=Naming, num_replicas=num_replicas)
  states = []
  original = task.reduce_aggregated_logs
  task.reduce_aggregated_logs = lambda logs, global_step: states.append(logs) or original(logs, global_step)
  small_tasks.train(trainer, 2)
  logs = small_tasks.evaluate(trainer)
  targets = small_tasks.rows(8)[1][:, 0]
  np.testing.assert_allclose([float(name) for name in states[0]["names"]], targets, rtol=1e-4)
  np.testing.assert_allclose(logs["gathered"], targets.sum(), rtol=1e-5)
  assert logs["step"] == 2


def test_m29_a_key_that_is_in_both_logs_is_named_and_the_models_is_used(caplog):
  class Clashing(Trainer):
    def next_eval_inputs(self, iterator):
      return next(iterator), {"loss": tf.constant("host")}

    def eval_reduce(self, state=None, step_outputs=None):
      seen.append(step_outputs["loss"])
      return state

  seen = []
  small_tasks.evaluate(small_tasks.build_trainer(trainer_class=Clashing))
  assert "['loss'] are both in the passthrough logs" in caplog.text
  assert seen[0][0].dtype == tf.float32


def test_d54_begin_end_and_reduce_can_be_overridden():
  calls = []

  class Hooked(Trainer):
    def train_loop_begin(self):
      calls.append("train_loop_begin")
      super().train_loop_begin()

    def train_loop_end(self):
      calls.append("train_loop_end")
      return {**super().train_loop_end(), "extra": 1.0}

    def eval_begin(self):
      calls.append("eval_begin")
      super().eval_begin()
      return 0

    def eval_reduce(self, state=None, step_outputs=None):
      return state + 1

    def eval_end(self, aggregated_logs=None):
      calls.append(f"eval_end {aggregated_logs}")
      return {**super().eval_end(), "batches": aggregated_logs}

  trainer = small_tasks.build_trainer(trainer_class=Hooked)
  assert small_tasks.train(trainer, 1)["extra"] == 1.0
  assert small_tasks.evaluate(trainer)["batches"] == 3
  assert calls == ["train_loop_begin", "train_loop_end", "eval_begin", "eval_end 3"]


def test_initialising_loads_weights_through_the_task_and_starts_the_averages_from_them():
  class Pretrained(small_tasks.Regression):
    def initialize(self, model):
      model.set_weights([np.full_like(weight, 7.0) for weight in model.get_weights()])

  config = small_tasks.experiment(optimizer_config=small_tasks.optimization(ema=EmaConfig()))
  trainer = small_tasks.build_trainer(config, task=Pretrained)
  trainer.initialize()
  assert isinstance(trainer.state.ema, Ema)
  for average in trainer.state.ema.averages:
    assert (average.numpy() == 7.0).all()


# ---- Model's own things ----------------------------------------------------------------------------------------------


def test_checkpoint_items_of_the_model_join_the_checkpoint(tmp_path):
  class WithItems(small_tasks.Regression):
    def build_model(self):
      model = super().build_model()
      model.checkpoint_items = {"head": model.layers[-1], "model": tf.Variable(0.0)}
      return model

  trainer = small_tasks.build_trainer(task=WithItems)
  assert trainer.checkpoint.head is trainer.model.layers[-1]
  assert trainer.checkpoint.model is trainer.model  # Roots of ours are not given away.
  names = [name for name, _ in tf.train.list_variables(trainer.checkpoint.write(str(tmp_path / "ckpt")))]
  assert any(name.startswith(("head/kernel", "model/")) for name in names)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_m17_metrics_of_the_model_are_reported(num_replicas):
  class Watched(small_tasks.Regression):
    def build_model(self):
      model = super().build_model()
      model.add_metric(tf.reduce_mean(model.input), name="mean_input", aggregation="mean")
      return model

  trainer = small_tasks.build_trainer(
    task=lambda params: Watched(params, validation=small_tasks.rows(8)), num_replicas=num_replicas
  )
  logs = small_tasks.evaluate(trainer)
  np.testing.assert_allclose(logs["mean_input"], small_tasks.rows(8)[0].mean(), rtol=1e-5)
  assert "mean_input" in small_tasks.train(trainer, 1)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_losses_and_metrics_given_to_compile_train_and_are_reported(num_replicas):
  class Compiled(small_tasks.Regression):
    def build_model(self):
      model = super().build_model()
      model.compile(loss="mse", metrics=["mae", "mse"])
      return model

    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.constant(0.0)

    def build_metrics(self, training=True):
      return []

  compiled = small_tasks.build_trainer(task=Compiled, num_replicas=num_replicas)
  plain = small_tasks.build_trainer()
  logs, expected = small_tasks.train(compiled, 4), small_tasks.train(plain, 4)
  assert logs.keys() == {"mae", "mse", "training_loss", "learning_rate"}
  np.testing.assert_allclose(logs["training_loss"], expected["training_loss"], rtol=1e-5)
  np.testing.assert_allclose(logs["mae"], expected["mae"], rtol=1e-5)
  np.testing.assert_allclose(logs["mse"], expected["training_loss"], rtol=1e-5)
  for weight, wanted in zip(compiled.model.get_weights(), plain.model.get_weights(), strict=True):
    np.testing.assert_allclose(weight, wanted, rtol=1e-5, atol=1e-7)


def test_m28_m30_a_validation_loss_is_optional():
  class Lossless(small_tasks.Regression):
    def validation_step(self, inputs, model, metrics=None, mask=None):
      logs = super().validation_step(inputs, model, metrics, mask)
      return {key: value for key, value in logs.items() if key != self.loss}

  assert small_tasks.evaluate(small_tasks.build_trainer(task=Lossless)).keys() == {"mae"}


def test_steps_written_without_a_mask_work_on_full_batches():
  class Plain(small_tasks.Regression):
    def train_step(self, inputs, model, optimizer, metrics=None):
      return super().train_step(inputs, model, optimizer, metrics)

    def validation_step(self, inputs, model, metrics=None):
      return super().validation_step(inputs, model, metrics)

  trainer = small_tasks.build_trainer(task=lambda params: Plain(params, validation=small_tasks.rows(8)))
  small_tasks.train(trainer, 1)
  small_tasks.evaluate(trainer)


def test_one_nan_in_a_report_shows():
  class Once(small_tasks.Regression):
    def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
      logs = super().train_step(inputs, model, optimizer, metrics, mask)
      logs["loss"] = tf.where(optimizer.iterations == 2, np.nan, logs["loss"])
      return logs

  trainer = small_tasks.build_trainer(task=Once)
  assert np.isnan(small_tasks.train(trainer, 3)["training_loss"])
  assert np.isfinite(small_tasks.train(trainer, 3)["training_loss"])


def test_d51_a_report_is_the_mean_over_its_steps_not_the_last_one():
  trainer, single = small_tasks.build_trainer(), small_tasks.build_trainer()
  each = [small_tasks.train(single, 1)["training_loss"] for _ in range(4)]
  np.testing.assert_allclose(small_tasks.train(trainer, 4)["training_loss"], np.mean(each), rtol=1e-6)
  trainer.keep_window(True)
  each += [small_tasks.train(single, 1)["training_loss"] for _ in range(2)]
  np.testing.assert_allclose(small_tasks.train(trainer, 2)["training_loss"], np.mean(each), rtol=1e-6)


# ---- Inputs ----------------------------------------------------------------------------------------------------------


def per_replica_batches(count, size=2):
  features, targets = small_tasks.rows(count * size)
  return tf.data.Dataset.from_tensor_slices((features, targets)).batch(size, drop_remainder=True)


def test_m35_supplied_datasets_are_used_in_place_of_the_tasks():
  config = types.SimpleNamespace(trainer=small_tasks.experiment().trainer, task=types.SimpleNamespace())
  task = small_tasks.Regression(None)
  model = task.build_model()
  trainer = Trainer(
    config, task, model, tf_keras.optimizers.SGD(0.1),
    train_dataset=per_replica_batches(4).repeat(), validation_dataset=per_replica_batches(3),
  )  # fmt: skip
  assert not trainer.train_input.exact
  small_tasks.train(trainer, 5)
  features, targets = small_tasks.rows(6)
  expected = np.mean(np.square(model(features) - targets))
  for _ in range(2):
    np.testing.assert_allclose(small_tasks.evaluate(trainer)["validation_loss"], expected, rtol=1e-6)


def test_m11_m35_distributed_datasets_that_are_ready_made_are_taken():
  strategy, config = small_tasks.strategy_of(2), small_tasks.experiment()
  with strategy.scope():
    task = small_tasks.Regression(config.task)
    model = task.build_model()
    data = [strategy.experimental_distribute_dataset(per_replica_batches(3, size=4)) for _ in range(2)]
    trainer = Trainer(
      config, task, model, tf_keras.optimizers.SGD(0.0), train_dataset=data[0], validation_dataset=data[1]
    )
    assert trainer.strategy is strategy
  features, targets = small_tasks.rows(12)
  expected = np.mean(np.square(model(features) - targets))
  np.testing.assert_allclose(small_tasks.train(trainer, 3)["training_loss"], expected, rtol=1e-6)
  np.testing.assert_allclose(small_tasks.evaluate(trainer)["validation_loss"], expected, rtol=1e-6)


def test_a_training_dataset_that_is_set_later_is_used():
  trainer = small_tasks.build_trainer(task=Keeping)
  small_tasks.train(trainer, 1)
  zeros = tf.data.Dataset.from_tensor_slices(tuple(np.zeros_like(part) for part in small_tasks.rows(4))).batch(2)
  trainer.train_dataset = zeros.repeat()
  small_tasks.train(trainer, 2)
  assert not trainer.train_input.exact
  np.testing.assert_array_equal(trainer.task.last_targets.numpy(), np.zeros([2, 1]))


class Keeping(small_tasks.Regression):
  """Keeps the targets of the last step."""

  def __init__(self, params):
    super().__init__(params)
    self.last_targets = tf.Variable(np.ones([2, 1], np.float32), shape=tf.TensorShape([None, 1]))

  def train_step(self, inputs, *args, **kwargs):
    self.last_targets.assign(inputs[1])
    return super().train_step(inputs, *args, **kwargs)


def test_the_input_follows_a_step_that_was_set_back():
  trainer = small_tasks.build_trainer(task=Keeping)
  small_tasks.train(trainer, 3)
  third = trainer.task.last_targets.numpy()
  small_tasks.train(trainer, 3)
  trainer.global_step.assign(2)
  small_tasks.train(trainer, 1)
  np.testing.assert_array_equal(trainer.task.last_targets.numpy(), third)


def test_a_dataset_without_position_is_refused_where_exact_resume_is_asked_for():
  config = small_tasks.experiment(exact_resume=True)
  with pytest.raises(ValueError, match="exact_resume is set, but input position: not kept"):
    small_tasks.build_trainer(config, train_dataset=per_replica_batches(4).repeat())


# ---- Compilation -----------------------------------------------------------------------------------------------------


def test_m25_compiled_with_xla_on_one_cpu_it_traces_once_and_trains_alike():
  def trained(enable_xla):
    runtime = RuntimeConfig(seed=3, enable_xla=enable_xla)
    config = small_tasks.experiment(runtime=runtime, optimizer_config=small_tasks.optimization("adam"))
    trainer = small_tasks.build_trainer(
      config, task=lambda params: small_tasks.Regression(params, layers=lambda: small_tasks.normalised(False))
    )
    losses = [small_tasks.train(trainer, steps)["training_loss"] for steps in (4, 3, 5)]
    return trainer, losses

  compiled, losses = trained(True)
  plain, expected = trained(False)
  assert compiled.task.traces["train"] == plain.task.traces["train"] == 1
  np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_m8_options_of_xla_reach_the_strategy():
  trainer = small_tasks.build_trainer(
    small_tasks.experiment(runtime=RuntimeConfig(seed=1, tpu_enable_xla_dynamic_padder=False))
  )
  assert trainer._run_options.experimental_xla_options.enable_xla_dynamic_padder is False
  default = small_tasks.build_trainer()._run_options.experimental_xla_options
  assert default.enable_xla_dynamic_padder is True


def test_it_runs_eagerly_for_debugging():
  config = small_tasks.experiment(train_tf_while_loop=False, train_tf_function=False, eval_tf_function=False)
  eager, compiled = small_tasks.build_trainer(config), small_tasks.build_trainer()
  np.testing.assert_allclose(
    small_tasks.train(eager, 3)["training_loss"], small_tasks.train(compiled, 3)["training_loss"], rtol=1e-6
  )
  assert eager.task.traces["train"] == 3


# ---- Best checkpoints ------------------------------------------------------------------------------------------------


class Exporter:
  """Notes what it is asked to export."""

  def __init__(self):
    self.asked = []

  @property
  def best_ckpt_logs(self):
    return {"mae": self.asked[0][1]} if self.asked else None

  def maybe_export_checkpoint(self, checkpoint, logs, step):
    self.asked.append((step, float(logs["mae"]), checkpoint.model.get_weights()))


def test_m32_m33_the_best_is_exported_inside_an_evaluation_with_the_weights_that_were_evaluated():
  config = small_tasks.experiment(
    optimizer_config=small_tasks.optimization(ema=EmaConfig(average_decay=0.9)),
    best_checkpoint_eval_metric="mae",
    best_checkpoint_export_subdir="best",
  )
  exporter = Exporter()
  trainer = small_tasks.build_trainer(config, checkpoint_exporter=exporter)
  small_tasks.train(trainer, 4)
  logs = small_tasks.evaluate(trainer)
  ((step, value, weights),) = exporter.asked
  assert (step, value) == (4, logs["mae"])
  assert logs["best_mae"] == logs["mae"]
  np.testing.assert_equal(weights, [average.numpy() for average in trainer.state.ema.averages])
  assert (weights[0] != trainer.model.get_weights()[0]).any()


def test_a_rehearsal_names_the_metrics_and_exports_nothing():
  exporter = Exporter()
  trainer = small_tasks.build_trainer(checkpoint_exporter=exporter)
  before = small_tasks.bits(trainer)
  assert set(trainer.rehearse_evaluation()) == {"mae", "validation_loss"}
  assert exporter.asked == []
  assert small_tasks.bits(trainer) == before
  small_tasks.evaluate(trainer)
  assert len(exporter.asked) == 1


def test_a_config_of_another_library_is_read_from_its_attributes():
  own = small_tasks.experiment(optimizer_config=small_tasks.optimization(ema=EmaConfig(average_decay=0.5)))
  foreign = types.SimpleNamespace(
    task=own.task, trainer=types.SimpleNamespace(**vars(own.trainer)), runtime=types.SimpleNamespace(seed=11)
  )
  trainer = small_tasks.build_trainer(own, trainer_class=lambda _, *args, **kwargs: Trainer(foreign, *args, **kwargs))
  assert trainer.config is foreign
  assert trainer.seed == 11
  assert float(trainer.state.ema.decay(tf.constant(1000, tf.int64))) == 0.5


def test_configs_stay_as_they_are():
  config = small_tasks.experiment()
  copy = dataclasses.replace(config)
  small_tasks.train(small_tasks.build_trainer(config), 1)
  assert config == copy
