"""A pytest plugin for the process that runs the tests tf-models-official ships.

It parses absl's flags, puts our classes where theirs are (when `PEER_CLASSES=ours`), and writes
{test id: {outcome, failure, traceback}} to the JSON file named by `PEER_REPORT`. The peer's modules
look these names up when they use them: setting them before the tests are imported is enough.
"""

import json
import os
from pathlib import Path

_RESULTS: dict[str, dict[str, str]] = {}


def pytest_configure():
  from absl import flags
  from absl.testing import absltest  # noqa: F401 - it defines --test_tmpdir

  if not flags.FLAGS.is_parsed():
    flags.FLAGS(["pytest"])
  if os.environ["PEER_CLASSES"] == "ours":
    put_ours_in_place()


def put_ours_in_place() -> None:
  """Replaces the trainer, the best exporter, the runner and the actions of `official.core` by ours."""
  from official.core import actions, base_trainer, train_lib, train_utils

  from official_trainer.compat import actions as our_actions
  from official_trainer.compat import model_garden
  from official_trainer.trainer import Trainer

  base_trainer.Trainer = Trainer
  for name in ("PruningAction", "EMACheckpointing", "RecoveryAction", "RecoveryCondition"):
    setattr(actions, name, getattr(our_actions, name))
  train_utils.maybe_create_best_ckpt_exporter = model_garden.maybe_create_best_ckpt_exporter
  train_lib.maybe_create_best_ckpt_exporter = model_garden.maybe_create_best_ckpt_exporter
  train_lib.OrbitExperimentRunner = model_garden.ExperimentRunner
  train_lib.run_experiment = model_garden.run_experiment


def pytest_runtest_logreport(report):
  result = _RESULTS.setdefault(report.nodeid, {"outcome": "passed", "failure": "", "traceback": ""})
  if report.failed:
    result["outcome"] = "failed"
    # The error alone: the traceback quotes the peer's source, where any word may stand.
    result["failure"] += report.longrepr.reprcrash.message
    result["traceback"] += report.longreprtext
  elif report.skipped and result["outcome"] != "failed":
    result["outcome"] = "skipped"


def pytest_sessionfinish():
  Path(os.environ["PEER_REPORT"]).write_text(json.dumps(_RESULTS), "utf-8")
