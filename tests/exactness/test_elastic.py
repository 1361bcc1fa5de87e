"""A run that is stopped on some replicas goes on with others: the same batches, losses within rounding."""

import re

import numpy as np
import pytest

from tests import small_tasks
from tests.exactness.test_global_batches import Recording

pytestmark = pytest.mark.usefixtures("logical_cpus")

TRAIN_STEPS = 200
# (replicas, last step of the leg)
LEGS = ((1, 70), (2, 140), (4, 200))


def leg(folder, num_replicas, last_step, layers, notes=None):
  """Trains up to `last_step` in the folder, as a process that starts there; returns the trainer."""
  config = small_tasks.experiment(
    batch_size=8,
    optimizer_config=small_tasks.optimization("adam", 0.01),
    train_steps=last_step,
    steps_per_loop=10,
    checkpoint_interval=70,
    validation_interval=100,
  )

  def task(params):
    made = Recording(params)
    made.layers = layers
    return made

  trainer = small_tasks.build_trainer(config, task=task, num_replicas=num_replicas)
  session = small_tasks.session(trainer, folder, mode="train", facts={"num_replicas": num_replicas})
  if notes is not None:
    session._start._note = notes.append
  session.run()
  return trainer


@pytest.mark.slow
@pytest.mark.parametrize(
  "layers",
  [small_tasks.deep, lambda: small_tasks.normalised(synchronized=True)],
  ids=["without batch normalisation", "synchronised batch normalisation"],
)
def test_one_then_two_then_four_replicas_see_each_example_once_and_lose_the_same(tmp_path, layers):
  fixed = leg(tmp_path / "fixed", 1, TRAIN_STEPS, layers)
  batches = []
  for num_replicas, last_step in LEGS:
    trainer = leg(tmp_path / "changing", num_replicas, last_step, layers)
    batches += trainer.task.batches()
  assert batches == fixed.task.batches()
  stream = np.concatenate(batches)
  for epoch in range(len(stream) // 23):
    assert sorted(stream[23 * epoch : 23 * (epoch + 1)]) == list(range(23))
  values, reference = ([row[2]["training_loss"] for row in t.state.host.history.rows] for t in (trainer, fixed))
  assert len(reference) == TRAIN_STEPS // 10
  np.testing.assert_allclose(values, reference, rtol=1e-5)


@pytest.mark.parametrize(
  ("layers", "said"),
  [
    (small_tasks.deep, "the same losses but for rounding"),
    (lambda: small_tasks.normalised(synchronized=True), "the same losses but for rounding"),
    (lambda: small_tasks.normalised(synchronized=False), "the statistics of batch_norm.* belong to replicas"),
    (small_tasks.everything, "random masks belong to replicas"),
  ],
)
def test_what_does_not_stay_the_same_is_said_in_one_line(tmp_path, layers, said):
  leg(tmp_path, 1, 10, layers)
  notes = []
  leg(tmp_path, 2, 20, layers, notes)
  (line,) = [note for note in notes if "replicas" in note]
  assert line.startswith("goes on with 2 replicas, before it had 1: the same global batches")
  assert re.search(said, line)


def test_nothing_is_said_where_their_number_is_the_same(tmp_path):
  leg(tmp_path, 2, 10, small_tasks.everything)
  notes = []
  leg(tmp_path, 2, 20, small_tasks.everything, notes)
  assert not [note for note in notes if "replicas" in note]
