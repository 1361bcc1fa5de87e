"""How training speed grows with the number of workers under parameter servers, here and on Model Garden's trainer.

    python benchmarks/parameter_server.py [--rounds=5] [--steps=200] [--workers=1,2,4] [--json=FILE]

One task of Model Garden, whose input takes 20 ms a batch and computes nothing meanwhile, on both trainers: a small
model and one parameter server, in real processes on this machine. For each number of workers there is a cluster whose
coordinator holds both trainers; in every round each of them does the same number of steps on each cluster, one after
the other, and half as many just before that are not timed: they use up what the pipelines have read ahead while others
had their turn. Printed are medians over rounds: steps per second, and the ratio to one worker in the same round. Ends
with code 1 if this Trainer's ratios are below 1.9 for two and 3.6 for four workers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GCE_METADATA_IP", "127.0.0.1:9")

from official_trainer.processes.local_cluster import LocalCluster

BATCH_SECS = 0.02
BATCH_SIZE = 8
WANTED = {2: 1.9, 4: 3.6}
TRAINERS = ("ours", "Model Garden's")
_PLACE = "OFFICIAL_TRAINER_BENCHMARK"


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--workers", default="1,2,4")
  parser.add_argument("--json", help="file for the numbers")
  options = parser.parse_args()
  counts = [int(count) for count in options.workers.split(",")]
  with clusters(counts, options.steps) as coordinators:
    for connection in coordinators.values():
      for name in TRAINERS:  # The first steps compile, measure how long a call should be, and fill the queues.
        run(connection, name, options.steps)
    rounds = [
      {
        (name, count): options.steps / run(coordinators[count], name, options.steps)
        for name in TRAINERS
        for count in counts
      }
      for _ in range(options.rounds)
    ]
  print(f"{options.rounds} rounds of {options.steps} steps, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
  results = {name: summary(rounds, name, counts) for name in TRAINERS}
  for name, result in results.items():
    for count, (speed, ratio) in result.items():
      print(f"  {name:15s} {count} workers: {speed:6.1f} steps/s, {ratio:.2f} x one worker")
  if options.json:
    Path(options.json).write_text(json.dumps({"results": results, "load": os.getloadavg()}, indent=2) + "\n", "utf-8")
  low = [count for count, (_, ratio) in results["ours"].items() if ratio < WANTED.get(count, 0)]
  for count in low:
    print(f"below {WANTED[count]} x with {count} workers", file=sys.stderr)
  return 1 if low else 0


def summary(rounds: list[dict], name: str, counts: list[int]) -> dict[int, tuple[float, float]]:
  """Returns, by number of workers, the medians of the speed and of its ratio to the first number in the same round."""
  return {
    count: (
      statistics.median(each[name, count] for each in rounds),
      statistics.median(each[name, count] / each[name, counts[0]] for each in rounds),
    )
    for count in counts
  }


@contextlib.contextmanager
def clusters(counts: list[int], steps: int):
  """Starts a cluster for each number of workers; gives the connections to their coordinators."""
  with contextlib.ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    listener = stack.enter_context(Listener(("127.0.0.1", 0), authkey=b"benchmark"))
    coordinators = {}
    for count in counts:
      place = {"address": listener.address, "folder": str(folder / str(count)), "steps": steps}
      running = LocalCluster(
        workers=count,
        ps=1,
        program=(sys.executable, __file__),
        env={_PLACE: json.dumps(place), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        log_dir=folder / str(count),
      )
      stack.enter_context(running)
      coordinators[count] = listener.accept()
    yield coordinators


def run(connection: Connection, name: str, steps: int) -> float:
  """Returns how many seconds the steps took."""
  connection.send((name, steps))
  return connection.recv()


# ---- In the processes of a cluster ---------------------------------------------------------------------------------


def take_part() -> None:
  """Serves, or as the coordinator trains when it is told to."""
  from official_trainer.distribute.cluster import CHIEF, cluster_of_tf_config
  from official_trainer.distribute.config import RuntimeConfig
  from official_trainer.distribute.parameter_servers import build_parameter_server_strategy
  from official_trainer.distribute.server import serve

  place = json.loads(os.environ[_PLACE])
  cluster = cluster_of_tf_config(os.environ["TF_CONFIG"])
  runtime = RuntimeConfig(distribution_strategy="parameter_server")
  if cluster.task_type != CHIEF:
    serve(runtime, cluster, place["folder"])
  strategy = build_parameter_server_strategy(runtime, cluster)
  import tensorflow as tf

  with strategy.scope(), Client(tuple(place["address"]), authkey=b"benchmark") as connection:
    trainers = build_trainers(place["steps"])
    while True:
      name, steps = connection.recv()
      trainers[name].train(tf.constant(steps // 2))
      began = time.perf_counter()
      trainers[name].train(tf.constant(steps))
      connection.send(time.perf_counter() - began)


def build_trainers(steps: int) -> dict:
  """Builds both trainers of one and the same task."""
  import tensorflow as tf
  import tf_keras
  from official.core import base_task, base_trainer, config_definitions
  from tensorflow.python.data.experimental.ops import testing

  from official_trainer.trainer import Trainer

  class SlowInput(base_task.Task):
    def build_model(self):
      layers = tf_keras.layers
      return tf_keras.Sequential([layers.Input((32,)), layers.Dense(64, "relu"), layers.Dense(10)])

    def build_inputs(self, params, input_context=None):
      features = tf.random.stateless_normal([BATCH_SIZE, 32], [1, 2])
      batch = (features, tf.argmax(features[:, :10], axis=1))
      dataset = tf.data.Dataset.from_tensors(batch).repeat().apply(testing.sleep(int(BATCH_SECS * 1e6)))
      options = tf.data.Options()
      options.experimental_optimization.inject_prefetch = False  # Else idle workers read far ahead, and look faster.
      return dataset.with_options(options)

    def build_losses(self, labels, model_outputs, aux_losses=None):
      loss = tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
      return tf.reduce_mean(loss)

    def build_metrics(self, training=True):
      return [tf_keras.metrics.SparseCategoricalAccuracy("accuracy")]

  def build(kind):
    config = config_definitions.ExperimentConfig(
      task=config_definitions.TaskConfig(train_data=config_definitions.DataConfig(is_training=True)),
      trainer=config_definitions.TrainerConfig(steps_per_loop=steps),
    )
    task = SlowInput(config.task)
    return kind(config, task, task.build_model(), tf_keras.optimizers.Adam(1e-3), train=True, evaluate=False)

  return dict(zip(TRAINERS, (build(Trainer), build(base_trainer.Trainer)), strict=True))


if __name__ == "__main__":
  if _PLACE in os.environ:
    take_part()
  else:
    sys.exit(main())
