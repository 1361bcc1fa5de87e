"""An experiment that hangs inside its compiled loop after five steps, but only where the file HANG says so."""

import os
import time

import numpy as np
import tensorflow as tf

from official_trainer.registry import register_experiment
from tests import tiny


class HangingTask(tiny.TinyTask):
  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    def maybe_hang(iterations):
      if iterations == 5 and os.path.exists(os.environ["HANG"]):
        time.sleep(10**6)
      return np.int64(0)

    with tf.control_dependencies([tf.numpy_function(maybe_hang, [optimizer.iterations], tf.int64)]):
      return super().train_step(inputs, model, optimizer, metrics)


@register_experiment("hanging")
def hanging():
  return tiny.experiment_config(
    seed=3,
    task={"task_class": "tests.kill.hanging:HangingTask"},
    train_steps=8,
    steps_per_loop=8,
    checkpoint_interval=4,
  )
