import types

import pytest

from official_trainer.distribute.cluster import Cluster
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.resolvers import find_cluster
from official_trainer.errors import ConfigError

TF_CONFIG = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
SLURM = {
  "SLURM_PROCID": "2",
  "SLURM_STEP_NUM_TASKS": "3",
  "SLURM_STEP_NODELIST": "node[1-2]",
  "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def workers(*addresses, index):
  return Cluster(jobs={"worker": addresses}, task_type="worker", task_index=index)


def pod(name, address, phase="Running"):
  return types.SimpleNamespace(
    metadata=types.SimpleNamespace(name=name), status=types.SimpleNamespace(host_ip=address, phase=phase)
  )


class Client:
  """A Kubernetes API that lists these pods."""

  def __init__(self, *pods):
    self.pods = pods
    self.selectors = []

  def list_pod_for_all_namespaces(self, label_selector):
    self.selectors.append(label_selector)
    return types.SimpleNamespace(items=list(self.pods))


def kubernetes(client, host_ip="10.0.0.2"):
  config = RuntimeConfig(cluster_resolver="kubernetes", cluster_labels="job-name=digits", cluster_port=2000)
  return find_cluster(config, {"HOST_IP": host_ip}, kubernetes_client=client)


def test_without_a_word_of_others_a_process_is_alone():
  assert find_cluster(RuntimeConfig(), {}) is None


def test_tf_config_is_taken_where_it_is_set():
  assert find_cluster(RuntimeConfig(), {"TF_CONFIG": TF_CONFIG}) == workers("a:1", "b:1", index=1)


def test_hosts_of_the_config_come_first():
  config = RuntimeConfig(worker_hosts="x:1,y:1", task_index=0)
  assert find_cluster(config, {"TF_CONFIG": TF_CONFIG}) == workers("x:1", "y:1", index=0)


def test_tf_config_that_is_asked_for_and_not_set_is_refused():
  with pytest.raises(ConfigError, match="is 'tf_config', but the environment variable TF_CONFIG is not set"):
    find_cluster(RuntimeConfig(cluster_resolver="tf_config"), {})


def test_the_tasks_of_a_slurm_step_are_the_workers(monkeypatch):
  for name, value in SLURM.items():
    monkeypatch.setenv(name, value)
  found = find_cluster(RuntimeConfig(cluster_resolver="slurm", cluster_port=3000), {})
  assert found == workers("node1:3000", "node1:3001", "node2:3000", index=2)


def test_slurm_leaves_the_choice_of_gpus_to_slurm(monkeypatch):
  for name, value in SLURM.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
  find_cluster(RuntimeConfig(cluster_resolver="slurm"), {})
  import os

  assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"


def test_outside_of_slurm_its_cluster_is_refused(monkeypatch):
  monkeypatch.delenv("SLURM_PROCID", raising=False)
  with pytest.raises(ConfigError, match=r"is 'slurm', but this is no task of a SLURM step \(srun\)"):
    find_cluster(RuntimeConfig(cluster_resolver="slurm"), {})


def test_the_pods_with_the_labels_are_the_workers_by_name():
  client = Client(pod("digits-b", "10.0.0.2"), pod("digits-a", "10.0.0.1"))
  assert kubernetes(client) == workers("10.0.0.1:2000", "10.0.0.2:2000", index=1)
  assert client.selectors == ["job-name=digits"]


def test_a_pod_that_is_not_among_them_is_told_to_set_its_address():
  with pytest.raises(ConfigError, match=r"none of the pods .* is at 10.0.0.9:2000; they are at 10.0.0.1:2000.*HOST_IP"):
    kubernetes(Client(pod("digits-a", "10.0.0.1")), host_ip="10.0.0.9")


def test_a_pod_that_does_not_run_yet_is_named():
  with pytest.raises(ConfigError, match="the pods cannot be listed: .*digits-a.*Pending"):
    kubernetes(Client(pod("digits-a", "10.0.0.1", "Pending")))


def test_without_the_kubernetes_client_one_is_told_to_install_it():
  with pytest.raises(ConfigError, match="is 'kubernetes', which needs its client: pip install kubernetes"):
    kubernetes(None)
