"""What the processes of a cluster train in tests, by name: `--experiment_module=tests.cluster.experiments`."""

import json
import os

import tensorflow as tf

from official_trainer.registry import register_experiment
from tests import tiny

RAISES_AT = 5


@register_experiment("cluster/everything")
def everything():
  """Averages, statistics, random masks, best weights."""
  settings = {"train_steps": 120, "steps_per_loop": 5, "checkpoint_interval": 7, "validation_interval": 40}
  return tiny.experiment_config(**{**tiny.EVERYTHING, **settings})


@register_experiment("cluster/raising")
def raising():
  """An error of the task's own in the second worker alone, some steps after the start."""
  settings = {"train_steps": 40, "steps_per_loop": 2, "checkpoint_interval": 4, "validation_interval": 40}
  return tiny.experiment_config(task={"task_class": "tests.cluster.experiments:RaisingTask"}, **settings)


class RaisingTask(tiny.TinyTask):
  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    logs = super().train_step(inputs, model, optimizer, metrics, mask)
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
      tf.debugging.assert_less(
        optimizer.iterations, tf.constant(RAISES_AT, tf.int64), "trouble of the second worker alone"
      )
    return logs


@register_experiment("cluster/tf_data")
def tf_data():
  """A plain pipeline over one file, as a task that knows nothing of clusters reads it."""
  settings = {"train_steps": 6, "steps_per_loop": 2, "checkpoint_interval": 6, "validation_interval": 6}
  return tiny.experiment_config(task={"task_class": "tests.cluster.experiments:PipelineTask"}, **settings)


class PipelineTask(tiny.TinyTask):
  """Prints the examples of each step, by their first feature, which is their number."""

  def build_source(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    features, labels = tiny.examples()
    features[:, 0] = range(len(features))
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    return (dataset.repeat() if params.is_training else dataset).batch(params.global_batch_size)

  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    tf.print("step", optimizer.iterations, "examples", inputs[0][:, 0], summarize=-1)
    return super().train_step(inputs, model, optimizer, metrics, mask)

  def aggregate_logs(self, state=None, step_outputs=None):
    return [*(state or []), *(float(row) for part in step_outputs["scores"] for row in part)]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {"num_on_host": float(len(aggregated_logs)), "sum_on_host": sum(aggregated_logs)}

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, mask)
    present = tf.ones_like(inputs[0][:, 0]) if mask is None else mask
    return {**logs, "scores": tf.boolean_mask(inputs[0][:, 0], present > 0)}
