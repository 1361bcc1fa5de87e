import tensorflow as tf

from official_trainer.inner_loop.retraces import Traces
from official_trainer.stop import StopRequest
from tests import small_tasks


def step(traces, inputs, name="training"):
  """Traces a step that notes its inputs."""
  tf.function(lambda: traces.note(name, inputs)).get_concrete_function()


def built(**kwargs):
  said = []
  return Traces(warn=said.append, **kwargs), said


def test_traces_of_the_first_call_are_no_surprise():
  traces, said = built()
  step(traces, tf.zeros((8, 3)))
  step(traces, tf.zeros((5, 3)))  # For instance for the partial batch at the end of the first epoch.
  assert traces.counts == {"training": 2} and said == []


def test_both_signatures_are_said_and_what_is_different():
  traces, said = built()
  step(traces, ({"image": tf.zeros((8, 3)), "size": tf.constant(1)}, tf.zeros((8,), tf.int32)))
  traces.settle("training")
  step(traces, ({"image": tf.zeros((8, 4)), "size": tf.constant(1)}, None))
  assert said == [
    "the training step is traced again (trace 2): inputs[0]['image'] was float32 [8, 3], is float32 [8, 4];"
    " inputs[1] was int32 [8], is not there."
    " Before: (inputs[0]['image']: float32 [8, 3], inputs[0]['size']: int32 [], inputs[1]: int32 [8])."
    " Now: (inputs[0]['image']: float32 [8, 4], inputs[0]['size']: int32 [])."
    " Each trace is compiled; give all batches one shape and type (drop_remainder, padded_batch, tf.ensure_shape)."
  ]


def test_the_same_inputs_point_to_the_rest_of_the_call():
  traces, said = built()
  for _ in range(2):
    step(traces, tf.zeros((8, 3)))
    traces.settle("training")
  assert len(said) == 1 and "its inputs are the same, (inputs: float32 [8, 3])" in said[0]
  assert "A Python number where a tensor should be (the number of steps)" in said[0]


def test_steps_that_are_traced_piece_by_piece_may_have_the_same_inputs_again():
  traces, said = built(in_pieces=True)
  for _ in range(2):
    step(traces, tf.zeros((8, 3)))
    traces.settle("training")
  assert said == []
  step(traces, tf.zeros((7, 3)))
  assert len(said) == 1 and "inputs was float32 [8, 3], is float32 [7, 3]" in said[0]


def test_each_step_has_a_count_of_its_own():
  traces, said = built()
  step(traces, tf.zeros((8, 3)))
  traces.settle("training")
  step(traces, tf.zeros((6, 3)), "evaluation")
  assert traces.counts == {"training": 1, "evaluation": 1} and said == []


def test_a_step_that_is_not_traced_is_not_counted():
  traces, _ = built()
  traces.note("training", tf.zeros((8, 3)))
  assert traces.counts == {}


def test_ragged_and_unknown_shapes_have_names():
  traces, said = built()
  step(traces, (tf.ragged.constant([[1.0], [2.0, 3.0]]),))
  traces.settle("training")

  @tf.function(input_signature=[tf.TensorSpec(None)])
  def unknown(value):
    traces.note("training", (value,))

  unknown.get_concrete_function()
  assert "inputs[0] was RaggedTensorSpec(" in said[0] and "is float32 of unknown rank" in said[0]


def test_of_replicas_the_first_ones_inputs_are_told(logical_cpus):
  traces, said = built()
  strategy = small_tasks.strategy_of(2)
  for size in (3, 4):
    step(traces, (strategy.experimental_distribute_values_from_function(lambda _, size=size: tf.zeros((size,))), None))
    traces.settle("training")
  assert len(said) == 1 and "inputs[0] was float32 [3], is float32 [4]." in said[0]


def test_a_trainer_counts_its_traces_and_warns_of_another_one(caplog):
  trainer = small_tasks.build_trainer()
  for _ in range(2):
    small_tasks.train(trainer, 2)
    small_tasks.evaluate(trainer)
  assert trainer.trace_counts == {"training": 1, "evaluation": 1}
  assert "traced again" not in caplog.text
  features, labels = small_tasks.rows(12)
  trainer.train_dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(3, drop_remainder=True).repeat()
  small_tasks.train(trainer, 2)
  assert trainer.trace_counts == {"training": 2, "evaluation": 1}
  assert "the training step is traced again (trace 2): inputs.inputs[0] was float32 [4, 3]" in caplog.text
  assert "inputs[0]: float32 [3, 3]" in caplog.text


def test_a_number_of_steps_in_python_is_told_of(caplog):
  trainer = small_tasks.build_trainer(stop=StopRequest())
  with trainer.strategy.scope():
    trainer.train(2)
    trainer.train(3)
  assert trainer.trace_counts["training"] == 2
  assert "something else of the call is not" in caplog.text
