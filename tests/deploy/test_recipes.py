"""Each recipe is run as it is written, up to the trainer's --print_config. What only a cluster has is played."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.processes import programs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/deploy"
SCRIPTS = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".sh", ".sbatch"))
MANIFESTS = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".yaml", ".yml"))

# What each recipe must have chosen.
STRATEGIES = {
  "hosts.sh": "multi_worker_mirrored",
  "kubernetes-jobset.yaml": "multi_worker_mirrored",
  "multi-gpu.sh": "mirrored",
  "slurm.sbatch": "multi_worker_mirrored",
  "tpu-vm.sh": "tpu",
  "training-operator.yaml": "parameter_server",
}

# Prints TF_CONFIG on a line of its own, and then the config; ends with the next of the codes.
PYTHON = f"""#!/bin/bash
echo "TF_CONFIG ${{TF_CONFIG:-}}" | tr -d '\\n'; echo
{sys.executable} "$@" --print_config || exit
codes=($CODES)
if [ -n "${{WAIT:-}}" ]; then
  trap 'exit 42' TERM
  touch "$STATE/waiting"
  while true; do sleep 0.05; done
fi
count=$(cat "$STATE/count" 2>/dev/null || echo 0)
echo $((count + 1)) > "$STATE/count"
exit "${{codes[$count]:-0}}"
"""
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*"
"""


class Played:
  """Runs a recipe's shell commands with a Python that prints the config and ends with given codes."""

  def __init__(self, folder: Path):
    self.folder = folder
    for name, text in (("python", PYTHON), ("srun", SRUN), ("scontrol", SCONTROL)):
      path = folder / "bin" / name
      path.parent.mkdir(exist_ok=True)
      path.write_text(text, "utf-8")
      path.chmod(0o755)

  def run(self, *command: str, codes=(0,), **environment: str) -> subprocess.CompletedProcess:
    (self.folder / "count").unlink(missing_ok=True)
    env = self._environment(codes, environment)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)

  def stop(self, *command: str, **environment: str) -> int:
    """Sends SIGTERM to the recipe's shell once its program runs, which then ends with 42; returns the shell's code."""
    env = self._environment((), {"WAIT": "1", **environment})
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
      programs.wait_until((self.folder / "waiting").exists)
      process.terminate()
      return process.wait()

  def _environment(self, codes, environment) -> dict[str, str]:
    env = {
      **os.environ,
      "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
      "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
      "STATE": str(self.folder),
      "CODES": " ".join(map(str, codes)),
      **environment,
    }
    env.pop("TF_CONFIG", None)
    return env

  @property
  def starts(self) -> int:
    return int((self.folder / "count").read_text())


@pytest.fixture
def played(tmp_path):
  return Played(tmp_path)


def containers(name):
  """Yields (replica name, container) of each pod that a manifest describes."""
  (manifest,) = yaml.safe_load_all((FOLDER / name).read_text("utf-8"))
  spec = manifest["spec"]
  if manifest["kind"] == "JobSet":
    pods = {job["name"]: job["template"]["spec"]["template"] for job in spec["replicatedJobs"]}
  else:
    pods = {job: replica["template"] for job, replica in spec["tfReplicaSpecs"].items()}
  for job, pod in pods.items():
    (container,) = pod["spec"]["containers"]
    yield job, container


def run_script(played, name, **options):
  environment = {"INDEX": "1", "MODEL_DIR": "/shared/run", "SLURM_JOB_ID": "77", **options.pop("environment", {})}
  return played.run("bash", str(FOLDER / name), **environment, **options)


def run_container(played, container, **options):
  environment = {item["name"]: item["value"] for item in container["env"]}
  return played.run(*container["command"], *container["args"], JOB_COMPLETION_INDEX="1", **environment, **options)


def test_every_file_is_a_recipe_that_is_tested():
  assert {*SCRIPTS, *MANIFESTS} == set(STRATEGIES)
  assert {path.name for path in FOLDER.iterdir()} == {*STRATEGIES, "README.md"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_of_a_script_is_understood(played, name):
  subprocess.run(["bash", "-n", str(FOLDER / name)], check=True)
  done = run_script(played, name)
  assert done.returncode == 0, done.stderr
  assert f"runtime.distribution_strategy = '{STRATEGIES[name]}'" in done.stdout
  assert played.starts == 1


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_command_of_every_pod_of_a_manifest_is_understood(played, name):
  found = list(containers(name))
  for _, container in found:
    done = run_container(played, container)
    assert done.returncode == 0, done.stderr
    assert f"runtime.distribution_strategy = '{STRATEGIES[name]}'" in done.stdout
  assert {json.dumps([item["command"], item["args"]]) for _, item in found} == {
    json.dumps([found[0][1]["command"], found[0][1]["args"]])
  }


def test_a_wrong_setting_in_a_recipe_would_be_seen(played):
  _, container = next(containers("kubernetes-jobset.yaml"))
  wrong = {**container, "args": [container["args"][0].replace("multi_worker_mirrored", "multi_worker")]}
  done = run_container(played, wrong)
  assert done.returncode == 2 and "runtime.distribution_strategy" in done.stderr


@pytest.mark.parametrize("name", ["multi-gpu.sh", "tpu-vm.sh"])
@pytest.mark.parametrize(("codes", "starts", "code"), [((42, 42, 0), 3, 0), ((42, 3), 2, 3), ((42, 42, 42), 2, 42)])
def test_a_loop_starts_a_run_again_that_asks_for_it(played, name, codes, starts, code):
  environment = {"RESTARTS": "1" if codes[-1] == 42 else "9"}
  assert run_script(played, name, codes=codes, environment=environment).returncode == code
  assert played.starts == starts


@pytest.mark.parametrize(
  ("code", "restarts", "requeued"), [(42, "0", True), (137, "3", True), (42, "20", False), (2, "0", False)]
)
def test_slurm_puts_a_job_that_asks_for_it_into_the_queue_again(played, code, restarts, requeued):
  done = run_script(played, "slurm.sbatch", codes=[code], environment={"SLURM_RESTART_COUNT": restarts})
  assert done.returncode == code
  assert ("scontrol requeue 77" in done.stdout) is requeued


def test_the_training_operator_is_told_to_start_a_task_again_by_a_code_that_it_knows(played):
  _, container = next(containers("training-operator.yaml"))
  assert [run_container(played, container, codes=[code]).returncode for code in (0, 2, 42, 137)] == [0, 2, 142, 137]


def test_a_shell_that_is_asked_to_stop_passes_it_on_and_starts_nothing_again(played):
  assert played.stop("bash", str(FOLDER / "multi-gpu.sh")) == 42
  _, container = next(containers("training-operator.yaml"))
  (played.folder / "waiting").unlink()
  assert played.stop(*container["command"], *container["args"]) == 142


def test_a_tfjob_has_every_role():
  assert [job for job, _ in containers("training-operator.yaml")] == ["Chief", "Worker", "PS", "Evaluator"]


def test_the_pods_of_a_jobset_find_each_other_by_their_names(played):
  (manifest,) = yaml.safe_load_all((FOLDER / "kubernetes-jobset.yaml").read_text("utf-8"))
  (job,) = manifest["spec"]["replicatedJobs"]
  _, container = next(containers("kubernetes-jobset.yaml"))
  done = run_container(played, container)
  line = done.stdout.splitlines()[0]
  assert line.startswith("TF_CONFIG ")
  names = [
    f"{manifest['metadata']['name']}-{job['name']}-0-{index}.{manifest['spec']['network']['subdomain']}:2222"
    for index in range(job["template"]["spec"]["completions"])
  ]
  assert json.loads(line.partition(" ")[2]) == {"cluster": {"worker": names}, "task": {"type": "worker", "index": 1}}
  assert container["env"][0] == {"name": "NUM_WORKERS", "value": str(job["template"]["spec"]["parallelism"])}
  codes = job["template"]["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]
  assert codes["containerName"] == container["name"] and 42 in codes["values"] and codes["operator"] == "NotIn"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_pod_lives_longer_after_sigterm_than_a_run_needs_to_save(played, name):
  text = (FOLDER / name).read_text("utf-8")
  assert "terminationGracePeriodSeconds: 90" in text and "runtime.grace_secs=60" in text
