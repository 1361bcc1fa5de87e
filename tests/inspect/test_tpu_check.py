import functools
import inspect

import pytest
import tensorflow as tf
import tf_keras
from official.core import base_task

from official_trainer.inspect import tpu_rules
from official_trainer.inspect.replica_steps import RecordingStrategy, argument_specs, replica_steps
from official_trainer.inspect.tpu_check import check_tpu
from official_trainer.optim.config import EmaConfig
from official_trainer.random_state import seed_everything
from official_trainer.trainer import Trainer
from tests import tiny
from tests.inspect import tpu_tasks

each_bad_task = pytest.mark.parametrize("task_class", tpu_tasks.BAD, ids=lambda task_class: task_class.__name__)


def builder(task_class, trainer_class=Trainer, **settings):
  def build():
    config = tiny.experiment_config(**settings)
    seed_everything(tiny.SEED)
    task = task_class(config.task)
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    return trainer_class(config, task, task.build_model(), optimizer)

  return build


def check(task_class, trainer_class=Trainer, **settings):
  return check_tpu(builder(task_class, trainer_class, **settings))


@functools.cache
def report_on(task_class):
  """Returns the report on a bad task, which several tests look at."""
  return check(task_class)


def bad_line(task_class):
  """Returns the file and the number of the line that is marked in a task's source."""
  lines, first = inspect.getsourcelines(task_class)
  (number,) = [first + index for index, line in enumerate(lines) if line.rstrip().endswith("# BAD")]
  return inspect.getsourcefile(task_class), number


@pytest.fixture(autouse=True)
def writer(tmp_path):
  with tf.summary.create_file_writer(str(tmp_path)).as_default():
    yield


@each_bad_task
def test_a_bad_task_is_told_its_line(task_class):
  report = report_on(task_class)
  (finding,) = report.findings
  assert (finding.kind, finding.op) == tpu_tasks.BAD[task_class]
  assert (finding.place.file, finding.place.line) == bad_line(task_class)
  assert f"\n       {finding.place.text}\n" in str(report)
  assert finding.place.text.endswith("# BAD")


def test_every_rule_has_a_bad_task():
  rules = [value for value in vars(tpu_rules).values() if isinstance(value, tpu_rules.Rule)]
  broken = {finding.why for task_class in tpu_tasks.BAD for finding in report_on(task_class).findings}
  assert len(rules) > 10
  assert [rule for rule in rules if rule.why not in broken] == []


@pytest.mark.parametrize("task_class", tpu_tasks.ACCEPTED_BY_XLA_ON_A_CPU, ids=lambda task_class: task_class.__name__)
def test_the_walk_through_the_graph_finds_what_xla_on_a_cpu_accepts(task_class):
  report = report_on(task_class)
  assert report.compiled == ("training", "evaluation")
  assert not report.is_clean


EMA = {"ema": EmaConfig(average_decay=0.9, dynamic_decay=True)}
LAYERS = {"task": {"hidden": (4,), "dropout": 0.5, "batchnorm": True}}


@pytest.mark.parametrize(
  "settings",
  [
    {},
    pytest.param({"skip_nonfinite_updates": True}, marks=pytest.mark.slow),
    pytest.param({"recovery_learning_rate_factor": 0.5}, marks=pytest.mark.slow),
  ],
)
def test_batchnorm_dropout_averages_and_static_control_flow_pass(settings):
  report = check(tpu_tasks.Everything, **EMA, **LAYERS, **settings)
  assert report.is_clean, str(report)
  assert report.compiled == ("training", "evaluation")
  assert report.num_operations > 300
  assert str(report).startswith("nothing found that a TPU would refuse")


def test_what_stays_on_the_host_is_no_finding():
  assert not check(tpu_tasks.NamesOnTheHost).is_clean
  report = check(tpu_tasks.NamesOnTheHost, tpu_tasks.HostTrainer)
  assert report.is_clean, str(report)
  assert report.compiled == ("training", "evaluation")


def test_all_findings_come_at_once_with_what_to_do():
  class Bad(tpu_tasks.Float64, tpu_tasks.NumpyFunction):
    pass

  report = check(Bad)
  assert [finding.kind for finding in report.findings] == ["float64", "host callback"], str(report)
  assert report.findings[0].steps == ("training", "evaluation")
  assert report.findings[1].steps == ("evaluation",)
  file, number = bad_line(tpu_tasks.NumpyFunction)
  assert f"at {file}:{number}, in validation_step\n" in str(report)
  assert "tf.numpy_function(np.max, [inputs[0]], tf.float32)}  # BAD\n" in str(report)
  assert "instead: write it in TensorFlow operations, move it into the input pipeline" in str(report)
  assert str(report).startswith("2 findings (")


def test_the_batch_of_an_evaluation_has_a_fixed_size_though_the_set_does_not_divide():
  strategy = RecordingStrategy()
  with strategy.scope():
    trainer = builder(tiny.TinyTask)()  # 20 examples, in batches of 6.
  (step,) = replica_steps(strategy, trainer.eval_step, trainer.eval_dataset)
  assert [spec.shape.as_list() for spec in argument_specs(step)] == [[6, 3], [6], [6]]


class Embedded(tiny.TinyTask):
  """Gradients of embeddings are sparse on one CPU; what a TPU sums over its cores is dense."""

  def build_model(self):
    layers = tf_keras.layers
    inputs = layers.Input((3,))
    words = layers.Embedding(5, 4)(tf.cast(inputs > 0, tf.int32))
    return tf_keras.Model(inputs, layers.Dense(2)(layers.LSTM(3)(words)))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"skip_nonfinite_updates": True}])
def test_embeddings_and_recurrent_layers_pass(settings):
  report = check(Embedded, **settings)
  assert report.is_clean, str(report)
  assert report.compiled == ("training", "evaluation")


class OfModelGarden(base_task.Task):
  """Written for another trainer: nobody pads the last batch of its evaluation."""

  def build_model(self):
    return tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.Dense(2)])

  def build_inputs(self, params, input_context=None):  # BAD
    dataset = tf.data.Dataset.from_tensor_slices(tiny.examples())
    dataset = dataset.repeat() if params.is_training else dataset
    return dataset.batch(params.global_batch_size, drop_remainder=params.is_training)

  def build_losses(self, labels, model_outputs, aux_losses=None):
    losses = tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
    return tf.reduce_mean(losses)

  def create_optimizer(self, *args):
    return tf_keras.optimizers.Adam()


def test_a_batch_that_nobody_pads_is_found():
  report = check(OfModelGarden)
  assert {finding.kind for finding in report.findings} == {"unknown dimension"}
  assert [finding.op for finding in report.findings] == [
    "input 0 of the replicas (float32 [None, 3])",
    "input 1 of the replicas (int32 [None])",
  ]
  assert {(finding.place.file, finding.place.line) for finding in report.findings} == {bad_line(OfModelGarden)}
  assert {finding.steps for finding in report.findings} == {("evaluation",)}
  assert report.compiled == ("training",)
