import json
import os
import signal
import subprocess
import sys

import pytest

from official_trainer.launcher import LocalCluster
from tests.processes import programs

PRINT_ENVIRONMENT = "print(json.dumps([config, sys.argv[1:], os.environ.get('GCE_METADATA_IP')]))"


def cluster_of(code, tmp_path, **settings):
  return LocalCluster(**{"workers": 2, "program": programs.python(code), "log_dir": tmp_path / "logs", **settings})


def resting(cluster):
  """Waits until every process of the cluster rests."""
  programs.wait_until(lambda: all("resting" in process.log() for process in cluster.processes()))


def said_by(cluster):
  return {task: json.loads(cluster.process(*task).log()) for task in cluster.tasks}


def test_without_parameter_servers_all_are_workers_with_one_command_line(tmp_path, monkeypatch):
  monkeypatch.delenv("GCE_METADATA_IP", raising=False)
  with cluster_of(PRINT_ENVIRONMENT, tmp_path, arguments=["--a=b", "c d"]) as cluster:
    assert cluster.wait(timeout=programs.LIMIT_SECS) == 0
    said = said_by(cluster)
  assert sorted(said) == [("worker", 0), ("worker", 1)]
  assert len(set(cluster.cluster_spec["worker"])) == 2
  for (job, index), (config, arguments, metadata) in said.items():
    assert config == {"cluster": cluster.cluster_spec, "task": {"type": job, "index": index}}
    assert arguments == ["--a=b", "c d"]
    assert metadata == "127.0.0.1:9"


def test_with_parameter_servers_there_is_a_coordinator_and_the_evaluator_is_no_member(tmp_path):
  with cluster_of(PRINT_ENVIRONMENT, tmp_path, ps=1, evaluator=True) as cluster:
    assert cluster.wait(timeout=programs.LIMIT_SECS) == 0
    said = said_by(cluster)
  assert sorted(said) == [("chief", 0), ("evaluator", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
  assert {job: len(hosts) for job, hosts in cluster.cluster_spec.items()} == {"chief": 1, "worker": 2, "ps": 1}
  assert len({host for hosts in cluster.cluster_spec.values() for host in hosts}) == 4
  assert said["evaluator", 0][0]["task"] == {"type": "evaluator", "index": 0}
  assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
    "chief-0.log", "evaluator-0.log", "ps-0.log", "worker-0.log", "worker-1.log",
  ]  # fmt: skip


def test_one_worker_can_be_killed_and_started_again_at_its_address(tmp_path):
  code = "rest() if not os.path.exists(sys.argv[1]) else sys.exit(0)"
  flag = tmp_path / "done"
  with cluster_of(code, tmp_path, arguments=[str(flag)]) as cluster:
    resting(cluster)
    first = cluster.process("worker", 1)
    with pytest.raises(ValueError, match="worker 1 still runs"):
      cluster.start("worker", 1)
    first.kill()
    assert first.wait(timeout=programs.LIMIT_SECS) == -signal.SIGKILL
    flag.touch()
    cluster.start("worker", 1)
    assert cluster.process("worker", 1).pid != first.pid
    assert cluster.process("worker", 1).wait(timeout=programs.LIMIT_SECS) == 0
    cluster.process("worker", 0).terminate()
    assert cluster.wait(timeout=programs.LIMIT_SECS) == 128 + signal.SIGTERM


def test_the_others_of_a_lost_worker_have_a_bounded_time(tmp_path):
  said = []
  code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); rest() if index else sys.exit(42)"
  with cluster_of(code, tmp_path, grace_secs=0.2, say=said.append) as cluster:
    assert cluster.wait(timeout=programs.LIMIT_SECS) == 42
    pid = cluster.process("worker", 1).pid
  assert not programs.is_alive(pid)
  text = "\n".join(said)
  assert "worker 0 started: process" in text
  assert "worker 0 ended with code 42 after" in text
  assert "worker 0 has ended: the others have 0.2 s to end" in text
  assert "worker 1 had not ended and was killed" in text


def test_a_coordinator_goes_on_without_one_worker(tmp_path):
  code = "sys.exit(1) if job == 'worker' and index else rest() if job == 'ps' else (time.sleep(0.5), sys.exit(0))"
  with cluster_of(code, tmp_path, ps=1, grace_secs=0.2) as cluster:
    assert cluster.wait(timeout=programs.LIMIT_SECS) == 0
    assert cluster.process("chief").returncode == 0


def test_the_evaluator_finishes_after_a_good_end(tmp_path):
  code = "time.sleep(1.0 if job == 'evaluator' else 0); print('evaluated'); sys.exit(0)"
  with cluster_of(code, tmp_path, evaluator=True, grace_secs=0.1) as cluster:
    assert cluster.wait(timeout=programs.LIMIT_SECS) == 0
    assert cluster.process("evaluator").returncode == 0


def test_waiting_longer_than_allowed_is_an_error_with_the_ends_of_the_logs(tmp_path):
  with cluster_of("print('still here', job, index); rest()", tmp_path) as cluster:
    resting(cluster)
    with pytest.raises(TimeoutError, match=r"(?s)still runs after 0.1 s.*still here worker 0.*still here worker 1"):
      cluster.wait(timeout=0.1)
    with pytest.raises(TimeoutError, match=r"(?s)process \d+ still runs after 0.1 s.*still here worker 1"):
      cluster.process("worker", 1).wait(timeout=0.1)
    assert len(cluster.pids()) == 2


GRANDCHILD = (
  "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
  "open(sys.argv[1], 'a').write(f'{os.getpid()}\\n{child.pid}\\n')\n"
)


def test_leaving_the_block_leaves_no_process_not_even_one_that_a_process_started(tmp_path):
  pids = tmp_path / "pids"
  with cluster_of(GRANDCHILD + "rest()", tmp_path, arguments=[str(pids)]) as cluster:
    resting(cluster)
  programs.wait_until_gone(programs.numbers_in(pids))
  assert len(programs.numbers_in(pids)) == 4


def test_what_a_process_leaves_running_at_its_end_is_killed(tmp_path):
  pids = tmp_path / "pids"
  with cluster_of(GRANDCHILD, tmp_path, workers=1, arguments=[str(pids)]) as cluster:
    assert cluster.wait(timeout=programs.LIMIT_SECS) == 0
    programs.wait_until_gone(programs.numbers_in(pids))


def test_no_process_outlives_a_cluster_whose_own_process_is_killed(tmp_path):
  pids = tmp_path / "pids"
  owner = (
    "import sys, time\nfrom official_trainer.launcher import LocalCluster\n"
    f"cluster = LocalCluster(workers=2, program={programs.python(GRANDCHILD + 'rest()')!r},"
    f" arguments=[{str(pids)!r}], log_dir={str(tmp_path / 'logs')!r})\n"
    "cluster.start()\ntime.sleep(600)"
  )
  process = subprocess.Popen([sys.executable, "-c", owner], env=os.environ)
  programs.wait_until(lambda: len(programs.numbers_in(pids)) == 4)
  process.kill()
  process.wait()
  programs.wait_until_gone(programs.numbers_in(pids))


@pytest.mark.parametrize(("workers", "ps"), [(0, 0), (1, -1)])
def test_a_cluster_without_workers_is_refused(workers, ps):
  with pytest.raises(ValueError, match="at least one worker"):
    LocalCluster(workers=workers, ps=ps)


def test_an_unknown_task_is_refused(tmp_path):
  with (
    cluster_of("rest()", tmp_path) as cluster,
    pytest.raises(ValueError, match=r"must be one of .*, got \('ps', 0\)"),
  ):
    cluster.start("ps")
