import json

import pytest

from official_trainer.distribute.cluster import Cluster, Role, cluster_of_hosts, cluster_of_tf_config
from official_trainer.errors import ConfigError

JOBS = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def tf_config(jobs, task_type="worker", index=0):
  return json.dumps({"cluster": jobs, "task": {"type": task_type, "index": index}})


def wrong_with(text):
  with pytest.raises(ConfigError) as raised:
    cluster_of_tf_config(text)
  assert {problem.path for problem in raised.value.problems} == {"TF_CONFIG"}
  return [problem.message for problem in raised.value.problems]


def test_tf_config_names_all_processes_and_this_one():
  cluster = cluster_of_tf_config(tf_config(JOBS, "worker", 1))
  assert cluster == Cluster(
    jobs={"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)}, task_type="worker", task_index=1
  )
  assert (cluster.name, cluster.address, cluster.is_chief) == ("worker 1", "c:1", False)
  assert cluster.others("chief", "worker") == {"chief": "a:1", "worker 0": "b:1"}


@pytest.mark.parametrize("text", ["", " ", "{}", '{"cluster": {}}', tf_config({"chief": ["a:1"]}, "chief")])
def test_a_single_process_is_no_cluster(text):
  assert cluster_of_tf_config(text) is None


def test_an_evaluator_need_not_be_among_the_processes_that_the_others_see():
  cluster = cluster_of_tf_config(tf_config(JOBS, "evaluator"))
  assert cluster.role("parameter_server") == Role.EVALUATOR
  assert cluster.address is None


@pytest.mark.parametrize(
  ("jobs", "task_type", "index", "is_chief"),
  [
    (JOBS, "chief", 0, True),
    (JOBS, "worker", 0, False),
    ({"worker": ["a:1", "b:1"]}, "worker", 0, True),
    ({"worker": ["a:1", "b:1"]}, "worker", 1, False),
  ],
)
def test_the_chief_writes_or_the_first_worker_where_there_is_none(jobs, task_type, index, is_chief):
  assert cluster_of_tf_config(tf_config(jobs, task_type, index)).is_chief == is_chief


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "is no JSON"),
    ("[]", "must be of the form"),
    (tf_config({"master": ["a:1"]}), "names the job 'master'; jobs are chief, worker, ps, evaluator"),
    (tf_config({"worker": "a:1"}), "must list the addresses of 'worker' as 'host:port', got 'a:1'"),
    (tf_config({"worker": ["a"]}), "must list the addresses of 'worker' as 'host:port'"),
    (tf_config({"chief": ["a:1", "b:1"], "worker": ["c:1"]}), "names 2 chiefs; there is one"),
    (tf_config({"worker": ["a:1", "a:1"]}), "gives the address a:1 to more than one process"),
    (json.dumps({"cluster": {"worker": ["a:1", "b:1"]}}), "must say which process this is"),
    (tf_config({"worker": ["a:1", "b:1"]}, "worker", 2), "says that this process is worker 2, of which there are 2"),
    (tf_config({"worker": ["a:1", "b:1"]}, "worker", "x"), "index of this process as a number from 0, got 'x'"),
  ],
)
def test_a_wrong_tf_config_is_refused_with_what_is_wrong(text, message):
  assert any(message in found for found in wrong_with(text))


def test_all_that_is_wrong_with_tf_config_is_said_at_once():
  assert len(wrong_with(tf_config({"chief": ["a:1", "b:1"], "boss": ["a:1"]}, "worker", 3))) == 4


@pytest.mark.parametrize(
  ("jobs", "task_type", "strategy", "role"),
  [
    ({"worker": ["a:1", "b:1"]}, "worker", "multi_worker_mirrored", Role.TRAINER),
    (JOBS, "chief", "parameter_server", Role.COORDINATOR),
    (JOBS, "worker", "parameter_server", Role.SERVER),
    (JOBS, "ps", "parameter_server", Role.SERVER),
    ({"worker": ["a:1", "b:1"]}, "evaluator", "mirrored", Role.EVALUATOR),
  ],
)
def test_what_a_process_does_follows_from_its_job_and_the_strategy(jobs, task_type, strategy, role):
  assert cluster_of_tf_config(tf_config(jobs, task_type)).role(strategy) == role


@pytest.mark.parametrize(
  ("jobs", "strategy", "message"),
  [
    ({"worker": ["a:1", "b:1"]}, "mirrored", "2 processes to train, of which each would train by itself"),
    (
      {"worker": ["a:1", "b:1"]},
      "parameter_server",
      "needs a chief, .*; no chief and no ps",
    ),
    (JOBS, "multi_worker_mirrored", "there are parameter servers, which 'multi_worker_mirrored' does not use"),
  ],
)
def test_a_cluster_that_does_not_fit_the_strategy_is_refused(jobs, strategy, message):
  with pytest.raises(ConfigError, match="runtime.distribution_strategy: the cluster does not fit: .*" + message):
    cluster_of_tf_config(tf_config(jobs)).role(strategy)


def test_hosts_are_workers_of_which_the_first_is_the_chief():
  cluster = cluster_of_hosts("a:1, b:1", 1)
  assert cluster == Cluster(jobs={"worker": ("a:1", "b:1")}, task_type="worker", task_index=1)
  assert not cluster.is_chief
