import pytest
import tensorflow as tf

from official_trainer.errors import ExitCode
from official_trainer.stop import EvaluationStopped, StopRequest


def steps_done(loop_fn, num_steps, counter):
  counter.assign(0)
  loop_fn(iter(tf.data.Dataset.range(100)), tf.constant(num_steps))
  return int(counter.numpy())


@pytest.mark.parametrize(("in_graph", "as_function"), [(True, True), (False, True), (False, False)])
def test_a_training_loop_ends_after_the_step_in_which_a_stop_was_asked_for(in_graph, as_function):
  stop, counter = StopRequest(), tf.Variable(0)

  def step(iterator):
    next(iterator)
    counter.assign_add(1)
    if counter == 3:
      tf.py_function(lambda: stop.set("a test", ExitCode.RESTART), [], [])

  loop_fn = stop.watched_loop(step, in_graph=in_graph, as_function=as_function)
  if not as_function:

    def eager(iterator):
      next(iterator)
      if int(counter.assign_add(1)) == 3:
        stop.set("a test", ExitCode.RESTART)

    loop_fn = stop.watched_loop(eager, in_graph=False, as_function=False)
  assert steps_done(loop_fn, 10, counter) == 3
  assert steps_done(loop_fn, 10, counter) == 0


def test_a_loop_that_nobody_stops_does_all_its_steps_and_is_traced_once():
  stop, counter, traces = StopRequest(), tf.Variable(0), []

  def step(iterator):
    traces.append(1)
    next(iterator)
    counter.assign_add(1)

  loop_fn = stop.watched_loop(step, in_graph=True, as_function=True)
  assert [steps_done(loop_fn, n, counter) for n in (6, 3, 1)] == [6, 3, 1]
  assert len(traces) == 1


def test_an_evaluation_is_left_after_the_batch_in_which_a_stop_was_asked_for():
  stop, seen = StopRequest(), []

  def loop_fn(iterator, num_steps, state=None, reduce_fn=None):
    for outputs in iterator:
      state = reduce_fn(state, outputs)
    return state

  def reduce_fn(state, outputs):
    seen.append(outputs)
    if outputs == 1:
      stop.set("a test", ExitCode.RESTART)
    return state

  with pytest.raises(EvaluationStopped):
    stop.watched_evaluation(loop_fn)(range(5), 5, reduce_fn=reduce_fn)
  assert seen == [0, 1]


def test_the_first_request_counts():
  stop = StopRequest()
  assert not stop.is_set
  stop.set("SIGTERM", ExitCode.RESTART)
  stop.set("Ctrl-C", ExitCode.INTERRUPTED)
  error = stop.preempted(7)
  assert (error.step, error.reason, error.code) == (7, "SIGTERM", ExitCode.RESTART)
  assert bool(stop.variable.numpy())
