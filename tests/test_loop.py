import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.actions.event import Actions
from official_trainer.actions.record import RecordHistory
from official_trainer.cadence import Cadence
from official_trainer.loop import Loop
from official_trainer.optim.config import EmaConfig
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


class Log(list):
  """Notes what the loop tells its actions."""

  def __call__(self, event):
    self.append((event.mode, event.step, event.reports, event.saves))


def loop_of(trainer, log, *, parts=None, **cadence):
  intervals = {"train_steps": 8, "steps_per_loop": 2, "checkpoint_interval": 4, **cadence}
  history = RecordHistory(trainer.state, dict)
  return Loop(
    trainer=trainer,
    cadence=Cadence(**intervals),
    actions=Actions(after_loop=(history, log), after_eval=(history, log)),
    **(parts or {}),
  )


class Spy(small_tasks.Trainer):
  """Notes the length of each inner loop instead of training."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.calls = []

  def train(self, num_steps):
    self.calls.append(int(num_steps))
    self.global_step.assign_add(tf.cast(num_steps, tf.int64))
    return {}

  def evaluate(self, num_steps):
    self.calls.append(f"evaluate {int(num_steps)}")
    return {"accuracy": 0.5}


def spied(**kwargs):
  trainer = small_tasks.build_trainer(trainer_class=Spy)
  log = Log()
  return trainer, log, loop_of(trainer, log, **kwargs)


@pytest.fixture(scope="module")
def spy():
  return spied()


def test_inner_loops_end_where_something_is_due():
  trainer, log, loop = spied(steps_per_loop=5, checkpoint_interval=4, checkpoints_at=(7,))
  loop.train(12)
  assert trainer.calls == [4, 1, 2, 1, 2, 2]
  assert [(step, reports, saves) for _, step, reports, saves in log] == [
    (4, False, True), (5, True, False), (7, False, True), (8, False, True), (10, True, False), (12, True, True),
  ]  # fmt: skip


def test_loops_also_end_where_somebody_looks_and_each_is_inside_of_what_is_around_it():
  entered = []

  @contextlib.contextmanager
  def around_loop(step):
    entered.append(step)
    yield
    entered.append("left")

  parts = {"further_stops": lambda step: (step + 3,), "around_loop": around_loop}
  trainer, log, loop = spied(steps_per_loop=4, parts=parts)
  loop.train(8)
  assert trainer.calls == [3, 1, 3, 1]
  assert entered == [0, "left", 3, "left", 4, "left", 7, "left"]
  assert [(step, reports) for _, step, reports, _ in log] == [(3, False), (4, True), (7, False), (8, True)]


def test_the_grid_is_absolute_after_a_restart():
  trainer, _, loop = spied(steps_per_loop=4, checkpoint_interval=100)
  trainer.global_step.assign(5)
  loop.train_and_evaluate(train_steps=20, eval_steps=3, eval_interval=8)
  assert trainer.calls == [3, "evaluate 3", 4, 4, "evaluate 3", 4, "evaluate 3"]


def test_an_evaluation_that_was_due_and_not_done_comes_first():
  trainer, log, loop = spied()
  trainer.global_step.assign(4)
  trainer.state.host.last_eval_step = 2
  loop.train_and_evaluate(train_steps=6, eval_interval=2)
  assert trainer.calls == ["evaluate -1", 2, "evaluate -1"]
  assert log[0][:2] == ("validation", 4)


def test_a_finished_run_trains_nothing_and_evaluates_once():
  trainer, _, loop = spied()
  trainer.global_step.assign(8)
  loop.train_and_evaluate(train_steps=8, eval_interval=2)
  assert trainer.calls == ["evaluate -1"]


def test_an_evaluation_of_no_batches_is_refused(spy):
  with pytest.raises(ValueError, match="at least 1, or -1"):
    spy[2].evaluate(0)


class Ending(small_tasks.Regression):
  """Twenty examples in batches of four, once: the data end after five steps."""

  def build_source(self, params):
    return super().build_source(params) if not params.is_training else None

  def build_inputs(self, params, input_context=None):
    size = input_context.get_per_replica_batch_size(params.global_batch_size)
    rows = tuple(part[:20] for part in self.train)
    return tf.data.Dataset.from_tensor_slices(rows).batch(size, drop_remainder=True)


@pytest.mark.parametrize(
  "train_tf_while_loop, num_replicas, legacy", [(True, 1, False), (True, 2, True), (False, 1, True), (False, 2, False)]
)
def test_when_the_data_end_the_run_stops_at_the_last_real_step(train_tf_while_loop, num_replicas, legacy, caplog):
  def trained(task, **kwargs):
    config = small_tasks.experiment(
      train_tf_while_loop=train_tf_while_loop,
      optimizer_config=small_tasks.optimization("adam", legacy=legacy, ema=EmaConfig()),
    )
    trainer = small_tasks.build_trainer(
      config,
      task=lambda params: task(params, layers=small_tasks.everything),
      num_replicas=num_replicas,
    )
    log = Log()
    loop = loop_of(trainer, log, steps_per_loop=4, **kwargs)
    loop.train_and_evaluate(train_steps=kwargs["train_steps"], eval_interval=100)
    return trainer, log, loop

  trainer, log, loop = trained(Ending, train_steps=8)
  assert trainer.state.step == 5
  assert trainer.optimizer.iterations.numpy() == 5
  assert loop.input_ended
  assert log == [("train", 4, True, True), ("train", 5, True, True), ("validation", 5, True, False)]
  assert "ended at step 5; 8 steps were asked for" in caplog.text
  full, _, _ = trained(type("Long", (Ending,), {"build_inputs": _forever}), train_steps=5)
  assert small_tasks.bits(trainer) == small_tasks.bits(full)
  assert trainer.train_loss.count.numpy() == 4.0  # One step of four examples since the last report.


def _forever(self, params, input_context=None):
  return Ending.build_inputs(self, params, input_context).repeat()


def test_training_data_without_a_batch_are_an_error():
  class Empty(Ending):
    def build_inputs(self, params, input_context=None):
      return super().build_inputs(params, input_context).take(0)

  loop = loop_of(small_tasks.build_trainer(task=Empty), Log())
  with pytest.raises(ValueError, match="training data are empty"):
    loop.train(4)


OPTIONS = [
  {"train_tf_function": function, "train_tf_while_loop": loop, "allow_tpu_summary": summary, **evaluation}
  for function, loop, summary in [(True, True, False), (True, True, True), (True, False, False), (False, False, False)]
  for evaluation in [
    {"eval_tf_function": True, "eval_tf_while_loop": False},
    {"eval_tf_function": True, "eval_tf_while_loop": True},
    {"eval_tf_function": False, "eval_tf_while_loop": False},
  ]
]


@pytest.fixture(scope="module")
def expected_of_options():
  return run_with(OPTIONS[0])


def run_with(options):
  config = small_tasks.experiment(optimizer_config=small_tasks.optimization("adam"), **options)
  trainer = small_tasks.build_trainer(config)
  loop = loop_of(trainer, Log())
  logs = loop.train_and_evaluate(train_steps=4, eval_steps=2, eval_interval=2)
  return small_tasks.bits(trainer)["model"], {key: float(value) for key, value in logs.items()}


@pytest.mark.parametrize("options", OPTIONS[1:], ids=lambda options: "".join(str(int(v)) for v in options.values()))
def test_m19_every_combination_of_loop_options_trains_alike(options, expected_of_options):
  weights, logs = run_with(options)
  expected_weights, expected_logs = expected_of_options
  assert logs == pytest.approx(expected_logs, rel=1e-6)
  for bits, expected in zip(weights, expected_weights, strict=True):
    np.testing.assert_allclose(
      np.frombuffer(bits, np.float32), np.frombuffer(expected, np.float32), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_one_trace_of_training_and_at_most_two_of_evaluation(num_replicas):
  trainer = small_tasks.build_trainer(task=small_tasks.PipelineRegression, num_replicas=num_replicas)
  loop = loop_of(trainer, Log(), steps_per_loop=6, train_steps=100)
  loop.train(6)
  loop.train(9)  # A loop of three; the epoch of 24 rows in batches of 4 ends inside.
  loop.evaluate()  # Ten rows in batches of 4: the last one is a partial one.
  loop.train(13)
  loop.evaluate()
  traces = {mode: count / num_replicas for mode, count in trainer.task.traces.items()}
  assert traces["train"] == 1
  assert traces["validation"] <= 2


def test_rounds_of_training_and_evaluation_trace_nothing_again():
  trainer = small_tasks.build_trainer(
    small_tasks.experiment(optimizer_config=small_tasks.optimization(ema=EmaConfig()))
  )
  loop = loop_of(trainer, Log(), train_steps=100)
  for step in range(2, 62, 2):
    loop.train(step)
    loop.evaluate()
  assert trainer.task.traces == {"train": 1, "validation": 1}
  assert trainer.state.ema._swap.experimental_get_tracing_count() == 1


def test_an_error_flushes_the_writers_and_saves_nothing():
  class Failing(Spy):
    def evaluate(self, num_steps):
      raise OSError("no such file")

  trainer = small_tasks.build_trainer(trainer_class=Failing)
  flushed, log = [], Log()
  loop = Loop(
    trainer=trainer,
    cadence=Cadence(train_steps=4, steps_per_loop=2, checkpoint_interval=4),
    actions=Actions(after_eval=(log,), on_error=(lambda: flushed.append(True),)),
  )
  with pytest.raises(OSError, match="no such file"):
    loop.evaluate()
  assert flushed == [True]
  assert log == []


def test_t37_speed_leaves_out_the_first_loop_and_evaluations():
  ticks = itertools.count()
  trainer = small_tasks.build_trainer(trainer_class=Spy)
  speeds = []
  loop = Loop(
    trainer=trainer,
    cadence=Cadence(train_steps=8, steps_per_loop=2, checkpoint_interval=8),
    actions=Actions(after_loop=(lambda event: speeds.append(dict(event.timings)),)),
    clock=lambda: float(next(ticks)),
  )
  loop.train_and_evaluate(train_steps=8, eval_interval=2)
  # Every interval of the clock is one second: two steps in each inner loop.
  assert speeds == [{}, *[{"steps_per_second": 2.0}] * 3]


def test_waiting_for_data_is_reported_as_a_share_of_training_and_the_first_loop_does_not_count():
  class Starved(Spy):
    def __init__(self, *args, **kwargs):
      super().__init__(*args, **kwargs)
      self.data_wait = self

    def take(self):
      return 0.25

  ticks = itertools.count()
  trainer = small_tasks.build_trainer(trainer_class=Starved)
  shares, waited = [], []
  loop = Loop(
    trainer=trainer,
    cadence=Cadence(train_steps=8, steps_per_loop=4, checkpoint_interval=2),
    actions=Actions(after_loop=(lambda event: shares.append(event.timings.get("data_wait_share")),)),
    clock=lambda: float(next(ticks)),
    waited=waited.append,
  )
  loop.train(8)
  assert shares == [None, 0.25, None, 0.25]
  assert waited == [0.25] * 3


def test_a_session_leaves_no_config_untouched(tmp_path):
  config = dataclasses.replace(small_tasks.experiment(steps_per_loop=3, checkpoint_interval=5, validation_interval=4))
  trainer = small_tasks.build_trainer(config)
  session = small_tasks.session(trainer, tmp_path)
  session.run()
  rows = trainer.state.host.history.rows
  assert [(row.step, row.mode) for row in rows] == [
    (3, "train"), (4, "validation"), (6, "train"), (8, "train"), (8, "validation"),
  ]  # fmt: skip
  assert session.store.steps() == [0, 5, 8]
