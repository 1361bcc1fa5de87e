import pytest

from official_trainer.run.batch_note import batch_note
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.mark.parametrize(
  ("size", "num_replicas", "expected"),
  [
    (4, 1, "batches of 4 examples: all on one replica: float32 [4, 3], float32 [4, 1]"),
    (4, 2, "batches of 4 examples: 2 on each of 2 replicas: float32 [2, 3], float32 [2, 1]"),
    (5, 2, "batches of 5 examples: 3 on each of 2 replicas, 1 of them padding: float32 [3, 3], float32 [3, 1]"),
  ],
)
def test_t27_the_global_batch_is_divided_over_the_replicas_and_said_so(size, num_replicas, expected):
  shapes = []

  class Seeing(small_tasks.Regression):
    def train_step(self, inputs, *args, **kwargs):
      shapes.append([part.shape.as_list() for part in inputs])
      return super().train_step(inputs, *args, **kwargs)

  config = small_tasks.experiment(batch_size=size)
  trainer = small_tasks.build_trainer(config, task=Seeing, num_replicas=num_replicas, evaluate=False)
  assert batch_note(trainer.train_input, size, num_replicas) == expected
  small_tasks.train(trainer, 1)
  each = -(-size // num_replicas)
  assert shapes == [[[each, 3], [each, 1]]] * num_replicas


def test_the_form_of_what_a_pipeline_gives_is_left_out():
  trainer = small_tasks.build_trainer(task=small_tasks.PipelineRegression, evaluate=False)
  assert batch_note(trainer.train_input, 4, 1) == "batches of 4 examples: all on one replica"
