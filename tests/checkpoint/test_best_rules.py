import tensorflow as tf

from official_trainer.checkpoint.best_folder import step_of
from official_trainer.checkpoint.best_rules import best_metric_names, build_best_checkpoints
from official_trainer.checkpoint.config import BestCheckpointConfig
from official_trainer.config.trainer import TrainerConfig
from tests.checkpoint.test_best import Model


def config(**changes):
  return TrainerConfig(best_checkpoint_export_subdir="best_ckpt", best_checkpoint_eval_metric="accuracy", **changes)


def test_the_rules_of_a_config_are_built_in_order(tmp_path):
  more = BestCheckpointConfig(subdir="best_loss", eval_metric="b|loss")
  options = config(best_checkpoints=(more,))
  assert best_metric_names(options) == {
    "trainer.best_checkpoint_eval_metric": "accuracy",
    "trainer.best_checkpoints.0.eval_metric": "b|loss",
  }
  rules = list(build_best_checkpoints(options, str(tmp_path)))
  assert [(rule.metric_name, rule.comparison) for rule in rules] == [
    ("accuracy", "higher"),
    ("b|loss", "lower"),
  ]
  assert [rule.export_dir for rule in rules] == [
    str(tmp_path / "best_ckpt"),
    str(tmp_path / "best_loss"),
  ]


def test_without_a_rule_there_is_no_exporter(tmp_path):
  assert build_best_checkpoints(TrainerConfig(), str(tmp_path)) is None
  assert best_metric_names(TrainerConfig(best_checkpoint_eval_metric="accuracy")) == {}


def test_each_rule_keeps_its_own_best(tmp_path):
  more = BestCheckpointConfig(subdir="best_loss", eval_metric="loss")
  exporter = build_best_checkpoints(config(best_checkpoints=(more,)), str(tmp_path))
  checkpoint = tf.train.Checkpoint(model=Model())
  scores = [(0.5, 0.3), (0.7, 0.4), (0.6, 0.2)]
  done = [
    exporter.maybe_export_checkpoint(checkpoint, {"accuracy": accuracy, "loss": loss}, step)
    for step, (accuracy, loss) in enumerate(scores, 1)
  ]
  assert done == [True, True, True]
  assert exporter.best_ckpt_logs == {"accuracy": 0.7, "loss": 0.2}
  assert step_of(str(tmp_path / "best_ckpt")) == 2
  assert step_of(str(tmp_path / "best_loss")) == 3


def test_folders_that_end_alike_do_not_share_a_record(tmp_path):
  more = (
    BestCheckpointConfig(subdir="a/best", eval_metric="loss"),
    BestCheckpointConfig(subdir="b/best", eval_metric="loss", metric_comp="higher"),
  )
  records = {}
  exporter = build_best_checkpoints(TrainerConfig(best_checkpoints=more), str(tmp_path), records)
  checkpoint = tf.train.Checkpoint(model=Model())
  for step, loss in enumerate([0.5, 0.1, 0.9], 1):
    exporter.maybe_export_checkpoint(checkpoint, {"loss": loss}, step)
  assert step_of(str(tmp_path / "a/best")) == 2
  assert step_of(str(tmp_path / "b/best")) == 3
