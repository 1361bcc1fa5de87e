"""Several sets in one evaluation: each is scored as it would be alone."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.errors import ConfigError
from official_trainer.evaluation_sets import joined, parted
from official_trainer.optim.config import EmaConfig
from official_trainer.stop import EvaluationStopped, StopRequest
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")

SIZES = {"": 10, "a": 3, "b": 5, "train": 24, "none": 0}
"""Split -> its number of examples; "" is the validation set."""


def examples(split):
  features, targets = small_tasks.rows(SIZES[split], seed=len(split))
  return features, targets


class Splits(small_tasks.Regression):
  """Its data are those of the split that the settings name. Reports the sum and the number of what it was given."""

  def build_source(self, params):
    return ArraySource(examples("train" if params.is_training else params.tfds_split))

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, **({} if mask is None else {"mask": mask}))
    presence = tf.ones(tf.shape(inputs[0])[:1]) if mask is None else mask
    return {**logs, "first": tf.stack([inputs[0][:, 0], presence], axis=1)}

  def aggregate_logs(self, state, step_outputs):
    rows = np.concatenate([part.numpy() for part in step_outputs["first"]])
    return (state or []) + [value for value, present in rows if present]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    self.seen = {**getattr(self, "seen", {}), self.trainer.evaluated_set: [float(value) for value in aggregated_logs]}
    return {"host": {"num_examples": len(aggregated_logs)}}


class SplitsPipeline(Splits):
  def build_source(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    size = input_context.get_per_replica_batch_size(params.global_batch_size)
    split = "train" if params.is_training else params.tfds_split
    dataset = tf.data.Dataset.from_tensor_slices(examples(split)).batch(size)
    return dataset.repeat() if params.is_training else dataset


def built(sets, task=Splits, num_replicas=1, batch_sizes=None, stop=None, **trainer):
  config = small_tasks.experiment(eval_batch_size=4, **trainer)
  data = {
    name: DataConfig(tfds_split=split, global_batch_size=(batch_sizes or {}).get(name, 4))
    for name, split in sets.items()
  }
  config = dataclasses.replace(config, task=dataclasses.replace(config.task, evaluation_sets=data))
  made = small_tasks.build_trainer(config, task=task, num_replicas=num_replicas, stop=stop)
  made.task.trainer = made
  return made


def evaluate(trainer, num_steps=-1):
  with trainer.strategy.scope():
    return trainer.evaluate(tf.constant(num_steps))


def mean_absolute_error(trainer, split, size=None):
  features, targets = (part[:size] for part in examples(split))
  kernel, bias = (value.astype(np.float64) for value in trainer.model.get_weights())
  return np.abs(features @ kernel + bias - targets).mean()


@pytest.mark.parametrize("task", [Splits, SplitsPipeline])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_every_set_is_scored_in_full_with_each_example_once(task, num_replicas):
  sets = {"a": "a", "b": "b", "train_split": "train"}
  trainer = built(sets, task, num_replicas, batch_sizes={"b": 3, "train_split": 7})
  logs = evaluate(trainer)
  assert set(logs) == {"mae", "validation_loss", "host", *sets}
  for name, split in {"validation": "", **sets}.items():
    found = logs if name == "validation" else logs[name]
    assert set(found) - set(sets) == {"mae", "validation_loss", "host"}
    assert found["host"]["num_examples"] == SIZES[split]
    assert trainer.task.seen[name] == [float(value) for value in examples(split)[0][:, 0]]
    np.testing.assert_allclose(float(found["mae"]), mean_absolute_error(trainer, split), rtol=1e-6)
  assert trainer.evaluated_set == "validation" and trainer.evaluation_set_names == list(sets)


def test_each_set_is_traced_once_and_gives_the_bits_that_it_gives_alone():
  sets = {"a": "a", "train_split": "train"}
  trainer = built(sets)
  first = evaluate(trainer)
  for _ in range(2):
    again = evaluate(trainer)
    assert again == first
  assert trainer.task.traces["validation"] == 3
  alone = evaluate(built({}))
  assert {name: alone[name] for name in ("mae", "validation_loss")} == {n: first[n] for n in ("mae", "validation_loss")}


def test_a_loop_inside_tensorflow_goes_through_every_set():
  trainer = built({"b": "b"}, eval_tf_while_loop=True, validation_steps=1)
  logs = evaluate(trainer, 1)
  np.testing.assert_allclose(float(logs["mae"]), mean_absolute_error(trainer, "", 4), rtol=1e-6)
  np.testing.assert_allclose(float(logs["b"]["mae"]), mean_absolute_error(trainer, "b", 4), rtol=1e-6)


def test_all_sets_see_the_averaged_weights_and_the_raw_ones_come_back():
  trainer = built({"a": "a"}, optimizer_config=small_tasks.optimization(ema=EmaConfig(average_decay=0.5)))
  small_tasks.train(trainer, 4)
  raw = small_tasks.bits(trainer)
  with trainer.state.ema.swapped_in(4):
    expected = {split: mean_absolute_error(trainer, split) for split in ("", "a")}
  logs = evaluate(trainer)
  np.testing.assert_allclose([float(logs["mae"]), float(logs["a"]["mae"])], list(expected.values()), rtol=1e-6)
  assert small_tasks.bits(trainer) == raw
  assert abs(expected["a"] - mean_absolute_error(trainer, "a")) > 1e-3  # The raw weights score differently.


@pytest.mark.parametrize("at", ["validation", "a"])
def test_a_stop_inside_any_set_leaves_the_evaluation_with_the_raw_weights(at):
  stop = StopRequest()

  class Asking(Splits):
    def aggregate_logs(self, state, step_outputs):
      if self.trainer.evaluated_set == at:
        stop.set("SIGTERM", 42)
      return super().aggregate_logs(state, step_outputs)

  config = small_tasks.optimization(ema=EmaConfig(average_decay=0.5))
  trainer = built({"a": "train", "b": "b"}, Asking, stop=stop, optimizer_config=config)
  small_tasks.train(trainer, 2)
  raw = small_tasks.bits(trainer)
  with pytest.raises(EvaluationStopped):
    evaluate(trainer)
  assert small_tasks.bits(trainer) == raw
  assert trainer.evaluated_set == "validation"
  assert "b" not in getattr(trainer.task, "seen", {})


def test_an_empty_set_is_named():
  with pytest.raises(ValueError, match="Check task.evaluation_sets.more "):
    evaluate(built({"a": "a", "more": "none"}))


def test_all_that_is_wrong_with_the_sets_is_said_at_once():
  with pytest.raises(ConfigError) as raised:
    built({"a": "a", "b": "b"}, validation_steps=3, batch_sizes={"b": 0})
  text = str(raised.value)
  assert "asks for 3 batches, but task.evaluation_sets.a has 1." in text
  assert "task.evaluation_sets.b.global_batch_size: must be at least 1, got 0." in text


def test_a_set_with_the_name_of_a_metric_is_refused():
  with pytest.raises(ConfigError, match="task.evaluation_sets.mae: 'mae' is the name of a metric"):
    evaluate(built({"mae": "a"}))


def test_logs_are_joined_and_parted():
  logs = joined({"x": 1.0, "host": {"y": 2.0}}, {"a": {"x": 3.0}})
  assert logs == {"x": 1.0, "host": {"y": 2.0}, "a": {"x": 3.0}}
  assert parted(logs, ["a", "b"]) == ({"x": 1.0, "host": {"y": 2.0}}, {"a": {"x": 3.0}})


# ---- Going on where the evaluation before ended ------------------------------------------------------


@pytest.mark.parametrize("task", [Splits, SplitsPipeline])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_an_evaluation_goes_on_after_the_batches_of_the_one_before_and_goes_round(task, num_replicas):
  trainer = built({"b": "b"}, task, num_replicas, recreate_iterator_for_each_eval=False, validation_steps=2)
  history = trainer.state.host.history
  # Ten examples make batches of 4, 4 and 2; five make batches of 4 and 1.
  rows, other = (np.split(examples(split)[0][:, 0], cuts) for split, cuts in (("", (4, 8)), ("b", (4,))))
  for step, numbers in ((1, (0, 1)), (2, (2, 0)), (3, (1, 2))):
    trainer.global_step.assign(step)
    for _ in range(2):  # Evaluated once more, the same step sees the same batches.
      evaluate(trainer, 2)
      assert trainer.task.seen["validation"] == [float(v) for number in numbers for v in rows[number]]
      assert trainer.task.seen["b"] == [float(v) for part in other for v in part]
    history.append(step, "validation", {})
    history.append(step, "b", {})
  evaluate(trainer)  # All there is.
  assert trainer.task.seen["validation"] == [float(v) for part in rows for v in part]
  assert trainer.task.traces["validation"] == 2 * num_replicas


def test_a_dataset_that_was_given_cannot_go_on():
  config = small_tasks.experiment(validation_steps=1, recreate_iterator_for_each_eval=False)
  dataset = tf.data.Dataset.from_tensor_slices(small_tasks.rows(8)).batch(4)
  with pytest.raises(
    ConfigError, match="trainer.recreate_iterator_for_each_eval: must be true: task.validation_data was"
  ):
    small_tasks.build_trainer(config, validation_dataset=dataset)


def test_a_task_of_model_garden_has_several_sets_and_goes_on():
  from official.core import base_task

  class Garden(base_task.Task):
    def build_model(self):
      inputs = small_tasks.tf_keras.layers.Input((small_tasks.FEATURES,))
      return small_tasks.tf_keras.Model(inputs, small_tasks.tf_keras.layers.Dense(1)(inputs))

    def build_inputs(self, params, input_context=None):
      dataset = tf.data.Dataset.from_tensor_slices(examples(params.tfds_split or "train")).batch(4, drop_remainder=True)
      return dataset.repeat() if params.is_training else dataset

    def build_metrics(self, training=True):
      return [small_tasks.tf_keras.metrics.MeanAbsoluteError("mae")]

    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.reduce_mean(tf.square(labels - model_outputs))

    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
      for metric in metrics:
        metric.update_state(labels, model_outputs)

  config = small_tasks.experiment(recreate_iterator_for_each_eval=False, validation_steps=1)
  data = {"more": DataConfig(tfds_split="train", global_batch_size=4, is_training=False)}
  config = dataclasses.replace(config, task=dataclasses.replace(config.task, evaluation_sets=data))
  optimizer = small_tasks.tf_keras.optimizers.SGD()
  trainer = small_tasks.build_trainer(config, task=Garden, optimizer=optimizer)
  error = functools.partial(_errors_of_batches, trainer)
  np.testing.assert_allclose(float(evaluate(trainer, 1)["more"]["mae"]), error(0), rtol=1e-6)
  trainer.state.host.history.append(0, "more", {})
  trainer.global_step.assign(1)
  np.testing.assert_allclose(float(evaluate(trainer, 1)["more"]["mae"]), error(1), rtol=1e-6)


def _errors_of_batches(trainer, number):
  features, targets = (part[4 * number : 4 * number + 4] for part in examples("train"))
  return np.abs(trainer.model(features).numpy() - targets).mean()
