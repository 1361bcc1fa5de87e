import numpy as np
import pytest

from official_trainer.optim.config import ParamGroupConfig
from tests import small_tasks
from tests.optim import grouped

pytestmark = pytest.mark.usefixtures("logical_cpus")


def norm(values):
  return np.sqrt(sum(np.square(value.astype(np.float64)).sum() for value in values))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_d6_norms_are_those_of_numpy(num_replicas):
  # One step of plain descent: the update is the gradient of the global batch times the rate.
  trainer = grouped.build(
    "sgd",
    rate=0.5,
    num_replicas=num_replicas,
    layers=grouped.plain,
    log_norms="groups",
    param_groups=(ParamGroupConfig(pattern="head"),),
  )
  before = grouped.weights(trainer)
  logs = small_tasks.train(trainer, 1)
  after = grouped.weights(trainer)
  changes = {path: after[path] - before[path] for path in before}
  assert logs["update_norm"] == pytest.approx(norm(changes.values()), rel=1e-5)
  assert logs["gradient_norm"] == pytest.approx(norm(changes.values()) / 0.5, rel=1e-5)
  assert logs["parameter_norm"] == pytest.approx(norm(after.values()), rel=1e-5)
  head = [changes[path] for path in changes if path.startswith("head")]
  assert logs["update_norm/head"] == pytest.approx(norm(head), rel=1e-5)
  assert logs["gradient_norm/default"] ** 2 + logs["gradient_norm/head"] ** 2 == pytest.approx(
    logs["gradient_norm"] ** 2, rel=1e-5
  )


def test_a_report_holds_the_mean_over_its_steps():
  def norms(steps):
    trainer = grouped.build("sgd", log_norms="total")
    return [small_tasks.train(trainer, n)["gradient_norm"] for n in steps]

  each = norms([1, 1, 1])
  assert norms([3]) == pytest.approx([np.mean(each)], rel=1e-6)


def test_measuring_changes_no_bit():
  plain, measured = grouped.build("adam"), grouped.build("adam", log_norms="groups")
  small_tasks.train(plain, 3)
  small_tasks.train(measured, 3)
  assert small_tasks.bits(measured) == small_tasks.bits(plain)


def test_an_update_that_is_left_out_is_not_measured():
  def logs(poisoned):
    train = small_tasks.rows(24)
    if poisoned:
      train[0][:] = np.nan
    config = small_tasks.experiment(log_norms="total", skip_nonfinite_updates=True)
    trainer = small_tasks.build_trainer(config, task=lambda params: small_tasks.Regression(params, train=train))
    return small_tasks.train(trainer, 1)

  assert logs(False)["update_norm"] > 0
  assert "skipped_updates" in logs(True) and "update_norm" not in logs(True)
