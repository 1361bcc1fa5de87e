"""What a training step costs here and elsewhere: one process, one model, the same data, in turns.

    python benchmarks/step_overhead.py [--model=mlp|cnn] [--processes=5] [--rounds=16] [--steps=200] [--json=FILE]

Contenders: this Trainer, Model Garden's Trainer, a loop written by hand around `tf.function`, and tf-keras's `fit`,
each with a mean loss and an accuracy, with and without an average of the weights where they have one. In every round
each runs the same number of steps once, in an order that rotates. Printed are the median time of a step, and the median
over rounds of the ratio to the first contender of the group in the same round, with a 95 % bootstrap interval.

The group "watched" is about this Trainer alone: bare, and as a run has it, which can be stopped between two steps,
measures how long it waits for data, watches for hangs, and looks through all variables after each inner loop; and with
`trainer.skip_nonfinite_updates`.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GCE_METADATA_IP", "127.0.0.1:9")

import numpy as np
import tensorflow as tf
import tf_keras
from official.core import base_task, base_trainer
from official.core import config_definitions as peer_config
from official.modeling import optimization as peer_optimization
from sklearn.datasets import load_digits

from official_trainer.checkpoint.finite import FiniteCheck
from official_trainer.config import base
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.data.arrays import ArraySource
from official_trainer.stop import StopRequest
from official_trainer.task import Task
from official_trainer.timing.data_wait import DataWait
from official_trainer.timing.ledger import TimeLedger
from official_trainer.timing.phases import Phase, Phases
from official_trainer.timing.watchdog import Watchdog
from official_trainer.trainer import Trainer

BATCH_SIZE = 64
LEARNING_RATE = 1e-3
DECAY = 0.99
BASELINE = "by hand"


@dataclasses.dataclass(frozen=True)
class Contender:
  """A way to train. `run(n)` does n updates and returns when they are done."""

  name: str
  run: Callable[[int], Any]


def images() -> tuple[np.ndarray, np.ndarray]:
  """Returns the digits as (float32 [1797, 8, 8, 1], int32 [1797])."""
  digits = load_digits()
  return (digits.images[..., np.newaxis] / 16.0).astype("float32"), digits.target.astype("int32")


def dataset() -> tf.data.Dataset:
  """Returns endless shuffled batches, the same pipeline for every contender."""
  pairs = tf.data.Dataset.from_tensor_slices(images())
  return pairs.shuffle(2000, seed=1).repeat().batch(BATCH_SIZE, drop_remainder=True).prefetch(8)


def build_model(kind: str) -> tf_keras.Model:
  layers = tf_keras.layers
  if kind == "mlp":
    body = [layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(64, activation="relu")]
  else:
    body = [
      layers.Conv2D(32, 3, padding="same", use_bias=False),
      layers.BatchNormalization(),
      layers.ReLU(),
      layers.Conv2D(64, 3, padding="same", activation="relu"),
      layers.Flatten(),
      layers.Dense(256, activation="relu"),
    ]
  return tf_keras.Sequential([layers.Input((8, 8, 1)), *body, layers.Dense(10)])


def adam() -> tf_keras.optimizers.Optimizer:
  return tf_keras.optimizers.Adam(LEARNING_RATE, jit_compile=False)


class OwnTask(Task):
  """Our task; with `indexed` its batches are computed from the step, else they come from `dataset`."""

  def __init__(self, params: Any, kind: str, indexed: bool):
    super().__init__(params)
    self._kind, self._indexed = kind, indexed

  def build_model(self):
    return build_model(self._kind)

  def build_source(self, params):
    del params
    return ArraySource(images()) if self._indexed else None

  def build_inputs(self, params, input_context=None):
    del params, input_context
    return dataset()

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model_outputs)

  def build_metrics(self, training=True):
    return [tf_keras.metrics.SparseCategoricalAccuracy("accuracy")]


def ours(
  kind: str, *, ema: bool, indexed: bool, watched: bool = False, skip: bool = False, name: str | None = None
) -> Contender:
  optimizer = {"optimizer": {"type": "adam"}, "learning_rate": {"type": "constant"}}
  optimizer["ema"] = {"average_decay": DECAY, "trainable_weights_only": True} if ema else None
  config = base.from_dict(
    ExperimentConfig,
    {
      "task": {"train_data": {"global_batch_size": BATCH_SIZE, "is_training": True}},
      "trainer": {"optimizer_config": optimizer, "skip_nonfinite_updates": skip},
      "runtime": {"seed": 1},
    },
  )
  task = OwnTask(config.task, kind, indexed)
  extras = {"stop": StopRequest(), "data_wait": DataWait()} if watched else {}
  trainer = Trainer(config, task, task.build_model(), adam(), evaluate=False, **extras)
  name = name or ("ours, indexed" if indexed else "ours") + (" + EMA" if ema else "")
  if not watched:
    return Contender(name, lambda n: trainer.train(tf.constant(n)))
  finite = FiniteCheck(trainer.state.finite_variables())
  watchdog = Watchdog(600.0, progress=lambda: (trainer.state.step, 0), on_hang=lambda *hang: sys.exit(f"hang: {hang}"))
  watchdog.watching().__enter__()
  phases = Phases(watchdog.phase, TimeLedger().phase)

  def run(num_steps: int) -> None:
    with phases(Phase.TRAIN):
      trainer.train(tf.constant(num_steps))
    trainer.data_wait.take()
    if finite.non_finite_names():
      sys.exit("the weights are not finite")

  return Contender(name, run)


class PeerTask(base_task.Task):
  """The same task, written for Model Garden."""

  def __init__(self, params: Any, kind: str):
    super().__init__(params)
    self._kind = kind

  def build_inputs(self, params, input_context=None):
    del params, input_context
    return dataset()

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model_outputs))

  def build_metrics(self, training=True):
    return [tf_keras.metrics.SparseCategoricalAccuracy("accuracy")]


def peers(kind: str, *, ema: bool) -> Contender:
  config = peer_config.ExperimentConfig(task=peer_config.TaskConfig(), trainer=peer_config.TrainerConfig())
  model = build_model(kind)
  # Its averaging exists for legacy optimizers only.
  optimizer: Any = adam()
  if ema:
    optimizer = peer_optimization.ExponentialMovingAverage(
      tf_keras.optimizers.legacy.Adam(LEARNING_RATE), average_decay=DECAY
    )
  trainer = base_trainer.Trainer(config, PeerTask(config.task, kind), model, optimizer, evaluate=False)
  return Contender("Model Garden" + (" + EMA" if ema else ""), lambda n: trainer.train(tf.constant(n)))


def by_hand(kind: str, *, ema: bool) -> Contender:
  model, optimizer, iterator = build_model(kind), adam(), iter(dataset())
  weights = model.trainable_variables
  optimizer.build(weights)
  averages = [tf.Variable(w, trainable=False) for w in weights] if ema else []
  step = tf.Variable(0, dtype=tf.int64)
  loss_metric = tf_keras.metrics.Mean("loss")
  accuracy = tf_keras.metrics.SparseCategoricalAccuracy("accuracy")

  @tf.function
  def loop(num_steps):
    for _ in tf.range(num_steps):
      features, labels = next(iterator)
      with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
      optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
      loss_metric.update_state(loss)
      accuracy.update_state(labels, logits)
      step.assign_add(1)
      if averages:
        n = tf.cast(step, tf.float32)
        rate = 1.0 - tf.minimum(DECAY, (1.0 + n) / (10.0 + n))
        for average, weight in zip(averages, weights, strict=True):
          average.assign_sub(rate * (average - weight))

  def run(num_steps: int):
    loop(tf.constant(num_steps))
    logs = {"loss": float(loss_metric.result()), "accuracy": float(accuracy.result())}
    loss_metric.reset_state()
    accuracy.reset_state()
    return logs

  return Contender(BASELINE + (" + EMA" if ema else ""), run)


def fit(kind: str) -> Contender:
  model = build_model(kind)
  loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(adam(), loss, metrics=["accuracy"])
  data = dataset()
  return Contender("tf-keras fit", lambda n: model.fit(data, steps_per_epoch=n, epochs=1, verbose=0))


def interval(processes: list[list[float]]) -> tuple[float, float]:
  """Returns a 95 % bootstrap interval of the median, drawing processes, then rounds within them.

  One process places threads and buffers once, for good: its rounds are alike, and only other processes tell how far the
  figure depends on that.
  """
  generator = np.random.default_rng(0)
  medians = []
  for _ in range(2000):
    drawn = [processes[index] for index in generator.integers(len(processes), size=len(processes))]
    medians.append(np.median(np.concatenate([generator.choice(values, size=len(values)) for values in drawn])))
  low, high = np.percentile(medians, [2.5, 97.5])
  return float(low), float(high)


def measure(contenders: list[Contender], rounds: int, steps: int) -> dict[str, list[float]]:
  """Returns name -> seconds a step in each round."""
  for contender in contenders:
    contender.run(steps)
    contender.run(steps)
  times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
  for number in range(rounds):
    shift = number % len(contenders)
    for contender in contenders[shift:] + contenders[:shift]:
      began = time.perf_counter()
      contender.run(steps)
      times[contender.name].append((time.perf_counter() - began) / steps)
  return times


# Few contenders a process: each has an input pipeline with threads of its own, and eight of them disturb one another.
GROUPS: dict[str, Callable[[str], list[Contender]]] = {
  "without averages": lambda kind: [
    by_hand(kind, ema=False),
    ours(kind, ema=False, indexed=False),
    ours(kind, ema=False, indexed=True),
    peers(kind, ema=False),
    fit(kind),
  ],
  "with averages": lambda kind: [
    by_hand(kind, ema=False),
    by_hand(kind, ema=True),
    ours(kind, ema=True, indexed=False),
    peers(kind, ema=True),
  ],
  "watched": lambda kind: [
    ours(kind, ema=True, indexed=True, name="bare"),
    ours(kind, ema=True, indexed=True, watched=True, name="watched"),
    ours(kind, ema=True, indexed=True, watched=True, skip=True, name="watched, skips"),
    # The same thing twice: how far two equal contenders differ by chance.
    ours(kind, ema=True, indexed=True, name="bare again"),
  ],
}


def measure_in_new_process(args: argparse.Namespace, group: str) -> dict[str, list[float]]:
  """Runs one process's rounds of a group and returns name -> seconds a step in each round."""
  command = [sys.executable, __file__, f"--model={args.model}", f"--rounds={args.rounds}", f"--steps={args.steps}"]
  done = subprocess.run([*command, f"--group={group}"], capture_output=True, text=True, check=False)
  if done.returncode:
    sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
  return json.loads(done.stdout.splitlines()[-1])


def figures_of(times: list[dict[str, list[float]]]) -> dict[str, dict[str, Any]]:
  """Returns name -> median time, ratio to the first contender and its interval, over all processes."""
  figures = {}
  baseline = next(iter(times[0]))
  for name in times[0]:
    ratios = [[value / base for value, base in zip(run[name], run[baseline], strict=True)] for run in times]
    figures[name] = {
      "us_per_step": 1e6 * statistics.median(t for run in times for t in run[name]),
      "ratio": statistics.median(ratio for run in ratios for ratio in run),
      "interval": interval(ratios),
    }
  return figures


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
  parser.add_argument("--processes", type=int, default=5)
  parser.add_argument("--rounds", type=int, default=16)
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--json", help="also write the figures to this file")
  parser.add_argument("--only", action="append", choices=GROUPS, help="measure this group only; repeatable")
  parser.add_argument("--group", choices=GROUPS, help="measure one group in this process and print raw times")
  args = parser.parse_args()
  if args.group:
    print(json.dumps(measure(GROUPS[args.group](args.model), args.rounds, args.steps)))
    return
  print(f"{args.model}, batch {BATCH_SIZE}: {args.processes} processes of {args.rounds} rounds of {args.steps} steps")
  figures = {}
  for group in args.only or GROUPS:
    figures[group] = figures_of([measure_in_new_process(args, group) for _ in range(args.processes)])
    print(f"{group:22}{'us a step':>10}{f'ratio to {next(iter(figures[group]))}':>28}")
    for name, entry in figures[group].items():
      low, high = entry["interval"]
      ratio = f"{entry['ratio']:.3f} [{low:.3f}, {high:.3f}]"
      print(f"  {name:20}{entry['us_per_step']:10.1f}{ratio:>28}")
  if args.json:
    with open(args.json, "w", encoding="utf-8") as file:
      json.dump({**vars(args), "figures": figures}, file, indent=2)


if __name__ == "__main__":
  main()
