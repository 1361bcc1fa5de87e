"""Evaluations: what is drawn, gathered and let go in them, and what they see at step 0."""

import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.optim.config import EmaConfig
from official_trainer.trainer import Trainer
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


class Sampling(small_tasks.Regression):
  """Drops units in evaluations, too; all examples are the same, and rows that fill up a batch are."""

  def __init__(self, params):
    layers = [tf_keras.layers.Dense(64, kernel_initializer="ones"), tf_keras.layers.Dropout(0.5)]
    super().__init__(
      params, validation=(np.ones([8, 3], np.float32), np.ones([8, 1], np.float32)), layers=lambda: layers
    )
    self.drawn = []

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.reduce_mean(tf.square(model_outputs - labels), axis=1)

  def build_metrics(self, training=True):
    return []

  def inference_step(self, inputs, model):
    return model(inputs, training=True)

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, mask)
    return {**logs, "outputs": self.inference_step(inputs[0], model)}

  def aggregate_logs(self, state, step_outputs):
    self.drawn += [part.numpy() for part in step_outputs["outputs"]]


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_t41_an_evaluation_that_draws_repeats_exactly_and_batches_and_replicas_draw_for_themselves(num_replicas):
  config = small_tasks.experiment(optimizer_config=small_tasks.optimization(rate=0.0))
  trainer = small_tasks.build_trainer(config, task=Sampling, num_replicas=num_replicas)
  first = small_tasks.evaluate(trainer)
  drawn = list(trainer.task.drawn)
  assert len(drawn) == 2 * num_replicas
  masks = {(part == 0).tobytes() for part in drawn}
  assert len(masks) == len(drawn)
  trainer.task.drawn.clear()
  small_tasks.train(trainer, 3)  # Draws as well; at a rate of 0 the weights stay.
  assert small_tasks.evaluate(trainer) == first
  np.testing.assert_array_equal(trainer.task.drawn, drawn)


class Gathering(small_tasks.Regression):
  """Gathers labels and predictions of real examples on the host."""

  def __init__(self, params):
    super().__init__(params, validation=small_tasks.rows(7, seed=1))
    self.gathered: dict[str, list] = {"labels": [], "predictions": []}

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, mask)
    return {**logs, "labels": inputs[1], "predictions": model(inputs[0]), "mask": mask}

  def aggregate_logs(self, state, step_outputs):
    for name, found in self.gathered.items():
      for values, mask in zip(step_outputs[name], step_outputs["mask"], strict=True):
        found.extend(values.numpy()[mask.numpy() > 0, 0])
    return self.gathered

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {"num_gathered": float(len(aggregated_logs["labels"]))}


def test_d13_d14_all_replicas_are_gathered_in_order_and_what_fills_up_the_last_batch_is_not():
  trainer = small_tasks.build_trainer(task=Gathering, num_replicas=2)
  assert small_tasks.evaluate(trainer)["num_gathered"] == 7  # In batches of four over two replicas.
  features, labels = trainer.task.validation
  np.testing.assert_array_equal(trainer.task.gathered["labels"], labels[:, 0])
  np.testing.assert_allclose(trainer.task.gathered["predictions"], trainer.model(features)[:, 0], rtol=1e-6)


def test_d10_without_gathering_the_metrics_are_the_same_and_no_output_reaches_the_host():
  config = small_tasks.experiment(gather_evaluation_outputs=False)
  alone = small_tasks.build_trainer(config, task=Gathering, num_replicas=2)
  whole = small_tasks.build_trainer(task=Gathering, num_replicas=2)
  expected = small_tasks.evaluate(whole)
  del expected["num_gathered"]
  assert small_tasks.evaluate(alone) == expected
  assert alone.task.gathered == {"labels": [], "predictions": []}


def test_d16_a_batch_is_let_go_once_its_step_is_over():
  alive = []

  class Watching(Trainer):
    def next_eval_inputs(self, iterator):
      alive.append(sum(reference() is not None for reference in references))
      batch, logs = super().next_eval_inputs(iterator)
      references.extend(weakref.ref(leaf) for leaf in batch.inputs)
      return batch, logs

  references: list = []
  config = small_tasks.experiment(eval_batch_size=1, eval_tf_function=False)
  trainer = small_tasks.build_trainer(config, trainer_class=Watching, train=False)
  small_tasks.evaluate(trainer)
  assert len(references) == 20 and len(alive) >= 10
  assert max(alive) <= 2  # Those of the batch before, at most.


def test_m13_an_evaluation_at_step_0_sees_the_initial_weights_as_their_averages():
  averaged = small_tasks.experiment(optimizer_config=small_tasks.optimization(ema=EmaConfig(average_decay=0.99)))
  trainer = small_tasks.build_trainer(averaged)
  assert trainer.state.ema.averages
  assert small_tasks.evaluate(trainer) == small_tasks.evaluate(small_tasks.build_trainer())
