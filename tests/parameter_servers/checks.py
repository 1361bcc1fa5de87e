"""What must be true of a trainer on parameter servers. Run by `test_in_process.py`, in a process of its own.

TensorFlow connects a process to one cluster for good, and forgets what was computed before: no test of another kind may
share the process.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.errors import ConfigError, Preempted
from official_trainer.optim.config import (
  ClipByGlobalNormConfig,
  EmaConfig,
  GradientTransformConfig,
  OptimizerConfig,
  ParamGroupConfig,
)
from official_trainer.random_state import seed_everything
from official_trainer.stop import StopRequest
from official_trainer.testing.compare import differences
from official_trainer.trainer import Trainer
from tests import tiny
from tests.parameter_servers.cluster import strategy
from tests.parameter_servers.tasks import CountingTask, counts_of

EVERYTHING = {"hidden": (4,), "dropout": 0.5}


def trainer_of(task_class=tiny.TinyTask, *, on=None, task=None, train_data=None, stop=None, given=None, **options):
  """Builds a trainer; `options` are those of TrainerConfig."""
  options = {"steps_per_closure": 2, **options}
  config = tiny.experiment_config(task=task, train_data=train_data, **options)
  seed_everything(tiny.SEED)
  with (on or strategy()).scope():
    made = task_class(config.task)
    optimizer = made.create_optimizer(config.trainer.optimizer_config)
    return Trainer(config, made, made.build_model(), optimizer, train_dataset=given, stop=stop)


def train(trainer, steps):
  with trainer.strategy.scope():
    return {name: float(value) for name, value in trainer.train(tf.constant(steps)).items()}


def evaluate(trainer, steps=-1):
  with trainer.strategy.scope():
    return {name: float(value) for name, value in trainer.evaluate(tf.constant(steps)).items()}


def weights(trainer):
  return [variable.numpy() for variable in trainer.state.variables()]


def same(left, right):
  return all(np.array_equal(one, other) for one, other in zip(left, right, strict=True))


# ---- Training ------------------------------------------------------------------------------------------------------


def test_each_batch_is_trained_once_whoever_does_it():
  trainer = trainer_of(CountingTask, train_data={"shuffle": False}, steps_per_closure=3)
  train(trainer, 20)
  train(trainer, 21)  # The last call is a shorter one.
  assert counts_of(trainer.model)[: 41 * tiny.BATCH_SIZE].tolist() == [1] * 41 * tiny.BATCH_SIZE
  assert counts_of(trainer.model).sum() == 41 * tiny.BATCH_SIZE
  assert trainer.state.step == int(trainer.optimizer.iterations.numpy()) == 41


def test_m4_a_report_is_about_the_examples_since_the_last_one():
  trainer = trainer_of()
  logs = train(trainer, 5)
  assert trainer.train_loss.count.numpy() == 5 * tiny.BATCH_SIZE
  assert logs["training_loss"] == pytest.approx(trainer.loop_loss)
  assert logs["accuracy"] * 20 == pytest.approx(round(logs["accuracy"] * 20))
  trainer.keep_window(True)
  train(trainer, 3)
  assert trainer.train_loss.count.numpy() == 8 * tiny.BATCH_SIZE


def test_m1_m2_one_call_at_a_time_is_the_computation_of_one_device_whatever_the_size_of_the_calls():
  settings = {"task": EVERYTHING, "ema": EmaConfig(average_decay=0.9), "serial_closures": True}
  runs = [trainer_of(steps_per_closure=size, **settings) for size in (1, 3)]
  logs = [train(trainer, 7) for trainer in runs]
  assert logs[0] == logs[1]
  assert same(*map(weights, runs))
  alone = trainer_of(on=tf.distribute.OneDeviceStrategy("CPU:0"), **{**settings, "serial_closures": False})
  train(alone, 7)
  assert same(weights(alone), weights(runs[0]))


def test_parameter_groups_and_clipping_are_those_of_one_device():
  clip = GradientTransformConfig(type="clip_by_global_norm", clip_by_global_norm=ClipByGlobalNormConfig(norm=0.1))
  groups = (ParamGroupConfig(pattern="bias", frozen=True), ParamGroupConfig(pattern="kernel", weight_decay=0.1))
  settings = {"task": EVERYTHING, "param_groups": groups, "gradient_transforms": (clip,)}
  served = trainer_of(serial_closures=True, **settings)
  begun = [variable.numpy() for variable in served.model.trainable_variables]
  alone = trainer_of(on=tf.distribute.OneDeviceStrategy("CPU:0"), **settings)
  train(served, 4)
  train(alone, 4)
  assert same(weights(alone), weights(served))
  is_frozen = ["bias" in variable.name for variable in served.model.trainable_variables]
  now = [variable.numpy() for variable in served.model.trainable_variables]
  assert [np.array_equal(one, other) for one, other in zip(begun, now, strict=True)] == is_frozen


def test_groups_that_would_lose_what_others_wrote_are_refused():
  for rule in ({"lr_multiplier": 0.5}, {"optimizer": OptimizerConfig(type="sgd")}):
    with pytest.raises(ConfigError, match="param_groups: must have no lr_multiplier, no layer_decay and no optimizer"):
      trainer_of(param_groups=(ParamGroupConfig(pattern="bias", **rule),))


def test_a_resumed_serial_run_ends_with_the_same_bits(tmp_path):
  settings = {
    "strategy": strategy(),
    "serial_closures": True,
    "exact_resume": True,
    "steps_per_closure": 2,
    **tiny.EVERYTHING,
  }
  tiny.build(tmp_path / "whole", **settings).run()
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path / "cut", mode="train_and_eval", session=tiny.interrupted_by(8), **settings).run()
  tiny.build(tmp_path / "cut", **settings).run()
  assert differences(tmp_path / "whole", tmp_path / "cut") == []


def test_m7_workers_shuffle_a_pipeline_each_for_itself():
  class Recorded(tiny.TinyTask):
    """Adds each label, which is the example's number, to the list of what was seen."""

    def build_source(self, params):
      return None if params.is_training else super().build_source(params)

    def build_inputs(self, params, input_context=None):
      dataset = tf.data.Dataset.range(1000).shuffle(1000, seed=params.seed).repeat()
      return dataset.map(lambda n: (tf.cast([n, n, n], tf.float32) / 1000, tf.cast(n % 2, tf.int32))).batch(4)

  trainer = trainer_of(Recorded)
  feed = trainer.train_input
  numbers = tf.function(lambda iterator: next(iterator).inputs[0][:, 0])
  iterator = iter(feed.dataset(0))
  pool = trainer.execution._pool
  from official_trainer.distribute.worker_pool import Call

  with trainer.strategy.scope():
    seen = [tuple(result.numpy()) for result in pool.results(Call(numbers, (iterator,)) for _ in range(24))]
  assert len(set(seen)) == 24
  assert "each worker reads the whole set in an order of its own" in feed.position


def test_left_out_batches_are_not_trained_also_when_they_are_named_later():
  trainer = trainer_of(CountingTask, train_data={"shuffle": False, "skip_steps": ((1, 3),)})
  train(trainer, 2)
  trainer.leave_out([(5, 6)])
  train(trainer, 3)
  batches = counts_of(trainer.model).reshape(-1, tiny.BATCH_SIZE)[:9, 0]
  assert batches.tolist() == [1, 0, 0, 1, 1, 0, 1, 1, 0]


def test_a_stop_ends_the_loop_with_the_steps_before_it_all_done():
  stop = StopRequest()
  trainer = trainer_of(CountingTask, train_data={"shuffle": False}, stop=stop)
  looks = itertools.count(1)
  stop.agreed = lambda: next(looks) > 5
  train(trainer, 400)
  step = trainer.state.step
  assert step == 10
  assert counts_of(trainer.model).tolist() == [1] * step * tiny.BATCH_SIZE + [0] * (4096 - step * tiny.BATCH_SIZE)


def test_a_stopped_session_saves_where_it_is(tmp_path):
  stop = StopRequest()

  def ask(event):
    stop.set("test", 42)

  built = tiny.build(
    tmp_path, strategy=strategy(), stop=stop, session={"train_actions": [ask]}, steps_per_closure=2, mode="train"
  )
  with pytest.raises(Preempted, match="after step 2"):
    built.run()
  assert built.session.store.steps() == [0, 2]


def test_the_size_of_calls_is_measured_once_and_told():
  trainer, told = trainer_of(steps_per_closure=None, steps_per_loop=64), []
  trainer.execution.remember(None, told.append)
  train(trainer, 64)
  train(trainer, 64)
  assert len(told) == 1
  assert 1 <= told[0] <= 8
  assert trainer.state.step == 128
  again = trainer_of(steps_per_closure=None, steps_per_loop=64)
  again.execution.remember(3, told.append)
  train(again, 6)
  assert len(told) == 1


def test_supplied_data_that_end_end_the_run_with_what_was_trained(tmp_path):
  data = tf.data.Dataset.from_tensor_slices(tiny.examples()).batch(tiny.BATCH_SIZE)
  trainer = trainer_of(given=data)
  with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
    train(trainer, 100)
  assert 5 <= trainer.state.step <= 10  # Five batches on each worker that came so far.
  assert trainer.train_loss.count.numpy() == trainer.state.step * tiny.BATCH_SIZE
  built = tiny.build(tmp_path, strategy=strategy(), task_class=tiny.FiniteTask, steps_per_closure=2, train_steps=100)
  built.run()
  assert built.session.loop.input_ended
  assert built.session.store.steps()[-1] == built.state.step


def test_an_error_in_a_step_is_raised_and_the_next_loop_works():
  class Failing(tiny.TinyTask):
    fails = None

    def train_step(self, *args, **kwargs):
      if Failing.fails is None:
        with tf.init_scope():
          Failing.fails = tf.Variable(True, trainable=False)
      with tf.control_dependencies([tf.debugging.assert_equal(Failing.fails, False, "on purpose")]):
        return super().train_step(*args, **kwargs)

  trainer = trainer_of(Failing)
  with pytest.raises(tf.errors.InvalidArgumentError, match="on purpose"):
    train(trainer, 20)
  assert trainer.state.step == 0
  Failing.fails.assign(False)
  train(trainer, 4)
  assert trainer.state.step == 4


# ---- Evaluation ----------------------------------------------------------------------------------------------------


class Gathering(tiny.TinyTask):
  """Reports which examples an evaluation saw, in order."""

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, mask)
    return {**logs, "first": inputs[0][:, 0], "mask": tf.ones([6]) if mask is None else mask}

  def aggregate_logs(self, state, step_outputs):
    real = step_outputs["first"][0].numpy()[step_outputs["mask"][0].numpy() > 0]
    return [*(state or []), *real]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    self.seen = np.asarray(aggregated_logs)
    return {"seen": float(len(aggregated_logs)), "at": float(global_step)}


def test_m6_an_evaluation_counts_each_example_once_and_gathers_in_order():
  trainer = trainer_of(Gathering, ema=EmaConfig(average_decay=0.5))
  train(trainer, 6)
  logs = evaluate(trainer)
  np.testing.assert_array_equal(trainer.task.seen, tiny.examples()[0][:, 0])
  assert (logs["seen"], logs["at"]) == (20, 6)
  assert trainer.validation_loss.count.numpy() == 20
  with trainer.state.ema.swapped_in(6):
    outputs = trainer.model(tiny.examples()[0]).numpy()
  assert logs["accuracy"] == pytest.approx(np.mean(outputs.argmax(1) == tiny.examples()[1]))
  assert evaluate(trainer) == logs
  assert evaluate(trainer, 2)["seen"] == 12
  assert evaluate(trainer, 100)["seen"] == 20


class Splits(Gathering):
  """`tfds_split` says how many examples there are."""

  def build_source(self, params):
    size = int(params.tfds_split or tiny.NUM_EXAMPLES)
    return ArraySource(tuple(part[:size] for part in tiny.examples()))


def test_named_sets_are_evaluated_by_the_workers_too():
  sets = {
    "few": DataConfig(tfds_split="7", global_batch_size=6),
    "one": DataConfig(tfds_split="1", global_batch_size=6),
  }
  trainer = trainer_of(Splits, task={"evaluation_sets": sets})
  with trainer.strategy.scope():
    logs, again = (trainer.evaluate(tf.constant(-1)) for _ in range(2))
  assert [logs["seen"], logs["few"]["seen"], logs["one"]["seen"]] == [20, 7, 1]
  for size, name in ((7, "few"), (1, "one")):
    outputs = trainer.model(tiny.examples()[0][:size]).numpy()
    accuracy = np.mean(outputs.argmax(1) == tiny.examples()[1][:size])
    assert float(logs[name]["accuracy"]) == pytest.approx(accuracy)
    assert float(again[name]["accuracy"]) == float(logs[name]["accuracy"])


def test_an_evaluation_that_goes_on_is_refused():
  with pytest.raises(
    ConfigError, match="trainer.recreate_iterator_for_each_eval: must be true under parameter servers"
  ):
    trainer_of(recreate_iterator_for_each_eval=False, validation_steps=1)


def test_an_evaluation_by_this_process_is_exact_as_well():
  class Pipeline(Gathering):
    def build_source(self, params):
      return super().build_source(params) if params.is_training else None

    def build_inputs(self, params, input_context=None):
      return tf.data.Dataset.from_tensor_slices(tiny.examples()).batch(params.global_batch_size)

  class WithItsOwnMetric(Gathering):
    def build_model(self):
      model = super().build_model()
      model.compile(loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
      return model

    def build_metrics(self, training=True):
      return []

    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.constant(0.0)

  by_workers = trainer_of(Gathering, serial_closures=True)
  expected = evaluate(by_workers)
  assert by_workers.train_input.is_by_number is False
  for task_class in (Pipeline, WithItsOwnMetric):
    trainer = trainer_of(task_class, serial_closures=True)
    logs = evaluate(trainer)
    assert logs["seen"] == 20
    np.testing.assert_array_equal(trainer.task.seen, tiny.examples()[0][:, 0])
    assert logs["accuracy"] == pytest.approx(expected["accuracy"])
    assert logs["validation_loss"] == pytest.approx(expected["validation_loss"])


def test_best_weights_are_exported_and_a_run_goes_on(tmp_path):
  settings = {"strategy": strategy(), "steps_per_closure": 2, **tiny.BEST}
  tiny.build(tmp_path, **{**settings, "train_steps": 4}).run()
  built = tiny.build(tmp_path, **{**settings, "train_steps": 8})
  built.run()
  assert built.state.step == 8
  assert [row.step for row in built.state.host.history.rows if row.mode == "train"] == [2, 4, 6, 8]
  assert (tmp_path / "best_ckpt" / "info.json").exists()


# ---- What is refused -----------------------------------------------------------------------------------------------


def test_what_cannot_be_honoured_is_refused_before_anything_is_built():
  with pytest.raises(ConfigError, match=r"trainer\.exact_resume: is refused under parameter servers"):
    trainer_of(exact_resume=True)


def test_a_source_that_python_reads_is_refused():
  class Python(tiny.TinyTask):
    def build_source(self, params):
      source = ArraySource(tiny.examples())
      return source.map(lambda batch: (tf.numpy_function(lambda x: x, [batch[0]], tf.float32), batch[1]))

  with pytest.raises(ConfigError, match=r"task\.train_data: is read by Python code"):
    trainer_of(Python)


def test_metrics_that_are_means_are_refused():
  class Averaged(tf_keras.metrics.Metric):
    def __init__(self):
      super().__init__(name="averaged")
      self.add_weight("value", aggregation=tf.VariableAggregation.MEAN)

    def update_state(self, *args, **kwargs):
      pass

    def result(self):
      return 0.0

  class WithIt(tiny.TinyTask):
    def build_metrics(self, training=True):
      return [Averaged()]

  with pytest.raises(ValueError, match="value is a mean over replicas"):
    trainer_of(WithIt)


def test_the_description_of_the_input_says_what_is_not_promised():
  assert "what an update sees of the others' differs from run to run" in trainer_of().train_input.position
  assert dataclasses.is_dataclass(trainer_of().config)
