"""The Task: what a user writes. Model, inputs, losses and metrics, as seen from one replica."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras
from absl import logging

from official_trainer.data.source import RandomAccessSource
from official_trainer.loss_terms import require_terms, weighted_sum
from official_trainer.optim.accumulate import share_of
from official_trainer.optim.build import build_optimizer
from official_trainer.serving import DEFAULT_SIGNATURE, INPUTS, input_spec, named, serving_function

LOSS_WEIGHT = "loss_weight"
"""Key in a step's logs: the weight of this replica's loss in the mean over the global batch."""

PREDICTIONS = "predictions"
LABELS = "labels"
MASK = "mask"
"""Keys in the logs of a validation step whose task gathers predictions."""


class ReplicaLoss(NamedTuple):
  """The loss of one replica, float32 scalars.

  Attributes:
    mean: over its examples; 0 where there are none.
    weight: of this mean in that over the global batch.
    terms: name -> mean of each term that is reported, without its weight.
  """

  mean: tf.Tensor
  weight: tf.Tensor
  terms: Mapping[str, tf.Tensor]


class Task(tf.Module, metaclass=abc.ABCMeta):
  """Base class of tasks. A first task overrides `build_model`, one of `build_source` / `build_inputs`, `build_losses`
  and `build_metrics`.

  Methods and signatures are those of Model Garden's `Task`; a task of this class runs on Model Garden's trainer, too.
  What is additional is optional: `build_source`, `count_examples`, `compute_loss`, `loss_weight`, `loss_terms`,
  `postprocess`, the serving methods, and the argument `mask`.

  An example counts once: when a batch is padded to a fixed size, `mask` (float32 [batch], 1 for real examples, 0 for
  padding) travels beside the inputs; losses and metrics are sums over real examples divided once by their number.
  """

  # The key of the loss in the logs of a step.
  loss = "loss"

  # Whether validation steps hand predictions, labels and mask to `aggregate_logs`, for metrics that need all of them.
  gathers_predictions = False

  def __init__(self, params: Any, logging_dir: str | None = None, name: str | None = None):
    """Stores the config; builds nothing.

    Args:
      params: the task's config, a TaskConfig.
      logging_dir: folder in which the task may write, normally model_dir.
      name: module name.
    """
    super().__init__(name=name)
    self._task_config = params
    self._logging_dir = logging_dir or ""

  @property
  def task_config(self) -> Any:
    return self._task_config

  @property
  def logging_dir(self) -> str:
    return self._logging_dir

  @classmethod
  def create_optimizer(cls, optimizer_config: Any, runtime_config: Any = None, dp_config: Any = None):
    """Builds the optimizer. Called once, under the strategy's scope.

    Args:
      optimizer_config: an OptimizationConfig. Its `ema` is not part of the optimizer: the trainer averages.
      runtime_config: a RuntimeConfig; float16 adds loss scaling.
      dp_config: Model Garden's differential privacy; must be None.

    Returns:
      A tf-keras optimizer.
    """
    if dp_config is not None:
      raise ValueError("`differential_privacy_config` is not supported; override `create_optimizer` to add it.")
    return build_optimizer(optimizer_config, runtime_config)

  def initialize(self, model: tf_keras.Model) -> None:
    """Loads pretrained weights from `task_config.init_checkpoint`. Called only when no checkpoint of this run exists.

    Args:
      model: the built model, whose `checkpoint_items` (or else the model itself, as `model`) are restored.

    Raises:
      ValueError: if `init_checkpoint` names nothing that can be restored.
    """
    path = getattr(self.task_config, "init_checkpoint", "")
    if not path:
      return
    prefix = tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path
    if prefix is None or not tf.io.gfile.glob(f"{prefix}.index"):
      raise ValueError(f"task.init_checkpoint: no checkpoint at {path!r}. Give a folder that holds one, or its prefix.")
    items = getattr(model, "checkpoint_items", None) or {"model": model}
    tf.train.Checkpoint(**items).read(prefix).expect_partial().assert_existing_objects_matched()
    logging.info("Initialised from %s.", os.fspath(prefix))

  def build_model(self) -> tf_keras.Model:
    """Returns a built model. Called once, under the strategy's scope.

    Its `checkpoint_items` (dict, optional attribute) join the checkpoint; its `metrics` are reported beside the task's;
    losses given to `compile` are used.
    """
    raise NotImplementedError(f"{type(self).__name__} must override build_model() and return a built tf_keras.Model.")

  def build_source(self, params: Any) -> RandomAccessSource | None:
    """Returns the examples with access by index, or None (the default) when only `build_inputs` is there.

    With a source, the batch of step s is a function of (seed, s): resuming is exact and immediate, and the same global
    batches are drawn for any number of replicas. Called once for training and once for evaluation data.

    Args:
      params: `task.train_data` or `task.validation_data`.
    """
    del params
    return None

  def count_examples(self, params: Any) -> int | None:
    """Returns how many examples an epoch has, or None (the default without a source) where nobody knows.

    Asked before the run is built, and only if a length in the config is written in epochs. Override it where building
    the source takes long and the number is known without.

    Args:
      params: `task.train_data` or `task.validation_data`.
    """
    source = self.build_source(params)
    return None if source is None else len(source)

  def build_inputs(self, params: Any, input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    """Returns batches as a `tf.data.Dataset`. Called on every host.

    The default derives them from `build_source`, for trainers that know nothing of sources.

    Args:
      params: `task.train_data` or `task.validation_data`.
      input_context: if given, batches are of `input_context.get_per_replica_batch_size(params.global_batch_size)` and
        the examples are those of this input pipeline; if None, of `params.global_batch_size`.

    Returns:
      A dataset of (features, labels), or of any structure that `train_step` understands. Endless when
      `params.is_training`, else each example once.
    """
    source = self.build_source(params)
    if source is None:
      raise NotImplementedError(
        f"{type(self).__name__} must override build_source() (examples by index; resumes exactly) or build_inputs()"
        " (any tf.data pipeline)."
      )
    from official_trainer.data.derive import dataset_from_source  # noqa: PLC0415

    return dataset_from_source(source, params, input_context)

  def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None) -> tf.Tensor:
    """Computes the loss on one replica. Runs in replica context, traced: no Python side effects.

    Args:
      labels: what `build_inputs` gives as labels.
      model_outputs: what the model returns.
      aux_losses: `model.losses`, such as regularisers, or None.

    Returns:
      Either float [batch], one loss for each example, without `aux_losses` (recommended: the step masks padding, sums,
      divides by the global weight and adds `aux_losses`); or a scalar, the mean over the batch with `aux_losses` added
      (Model Garden's convention; refused for padded batches, whose padding it could not leave out). With `loss_terms`,
      a mapping of one such loss for each term, without `aux_losses`.
    """
    del labels, model_outputs
    return tf.add_n(aux_losses) if aux_losses else tf.constant(0.0)

  def loss_weight(self, labels: Any, mask: tf.Tensor) -> tf.Tensor:
    """Returns the weight of this replica's loss: its number of real examples. Override for tokens, boxes, ...

    Args:
      labels: what `build_inputs` gives as labels.
      mask: float32 [batch], 1 for real examples and 0 for padding.

    Returns:
      float32 scalar. The loss of a step is the sum of `build_losses` over the global batch divided by the sum of the
      weights over all replicas.
    """
    del labels
    return tf.reduce_sum(mask)

  @property
  def loss_terms(self) -> Mapping[str, float]:
    """The terms of the loss by name, each with its weight, where `build_losses` returns them apart; none by default.

    The loss is their weighted sum. Each is reported under its name, without its weight, in training and in evaluation.
    """
    return {}

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """Returns the metrics to report. Called under the strategy's scope, once for training and once for evaluation."""
    del training
    return []

  def process_metrics(
    self,
    metrics: Sequence[tf_keras.metrics.Metric],
    labels: Any,
    model_outputs: Any,
    sample_weight: tf.Tensor | None = None,
  ) -> None:
    """Updates the metrics on one replica, in replica context.

    Args:
      metrics: what `build_metrics` returned.
      labels: what `build_inputs` gives as labels.
      model_outputs: what the model returned.
      sample_weight: float32 [batch], 0 for padding; given only when the batch is padded.
    """
    for metric in metrics:
      if sample_weight is None:
        metric.update_state(labels, model_outputs)
      else:
        metric.update_state(labels, model_outputs, sample_weight=sample_weight)

  def process_compiled_metrics(self, compiled_metrics: Any, labels: Any, model_outputs: Any, sample_weight: Any = None):
    """Updates the metrics that the model was compiled with, in replica context."""
    if sample_weight is not None:
      # tf-keras hands sample weights to `weighted_metrics` only; the mask of an output reaches all metrics.
      for output in tf.nest.flatten(model_outputs):
        output._keras_mask = _joint_mask(getattr(output, "_keras_mask", None), sample_weight)  # noqa: SLF001
    compiled_metrics.update_state(labels, model_outputs)

  def train_step(
    self,
    inputs: Any,
    model: tf_keras.Model,
    optimizer: Any,
    metrics: Sequence[tf_keras.metrics.Metric] | None = None,
    mask: tf.Tensor | None = None,
  ) -> dict[str, tf.Tensor]:
    """Does forward, backward and update on one replica, in replica context.

    The gradient is that of the mean over the global batch, however many examples each replica holds.

    Args:
      inputs: (features, labels), or features that are their own labels.
      model: the model.
      optimizer: the optimizer; sums gradients over replicas.
      metrics: metrics to update, or None.
      mask: float32 [batch] when the batch is padded, else None.

    Returns:
      logs with `loss` (this replica's mean), "loss_weight" (its weight), and the mean of each of the `loss_terms`.
    """
    features, labels = features_and_labels(inputs)
    with tf.GradientTape() as tape:
      outputs = model(features, training=True)
      loss = self._replica_loss(model, features, labels, outputs, mask)
      # The optimizer sums over replicas; each replica contributes its share of the global mean.
      scaled_loss = loss.mean * share_of(loss.weight)
      if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
        scaled_loss = optimizer.get_scaled_loss(scaled_loss)
    variables = model.trainable_variables
    gradients = tape.gradient(scaled_loss, variables)
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
      gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    return self._report(model, metrics, labels, outputs, loss, mask)

  def validation_step(
    self,
    inputs: Any,
    model: tf_keras.Model,
    metrics: Sequence[tf_keras.metrics.Metric] | None = None,
    mask: tf.Tensor | None = None,
  ) -> dict[str, tf.Tensor]:
    """Evaluates one replica's batch, in replica context. Arguments and logs as those of `train_step`."""
    features, labels = features_and_labels(inputs)
    outputs = self.inference_step(features, model)
    loss = self._replica_loss(model, features, labels, outputs, mask)
    logs = self._report(model, metrics, labels, outputs, loss, mask)
    if self.gathers_predictions:
      logs |= {PREDICTIONS: self.postprocess(outputs), LABELS: labels, **({} if mask is None else {MASK: mask})}
    return logs

  def compute_loss(
    self, inputs: Any, model: tf_keras.Model, mask: tf.Tensor | None = None, training: bool = False
  ) -> dict[str, tf.Tensor]:
    """Computes the loss of one replica's batch and nothing else, in replica context.

    Args:
      inputs: (features, labels), or features that are their own labels.
      model: the model.
      mask: float32 [batch] when the batch is padded, else None.
      training: whether the model runs in training mode, in which it may change its own statistics.

    Returns:
      logs as those of `train_step`.
    """
    features, labels = features_and_labels(inputs)
    outputs = model(features, training=True) if training else self.inference_step(features, model)
    return self._logs_of(self._replica_loss(model, features, labels, outputs, mask))

  def inference_step(self, inputs: Any, model: tf_keras.Model) -> Any:
    """Returns the model's outputs in inference mode, in replica context."""
    return model(inputs, training=False)

  def postprocess(self, model_outputs: Any) -> Any:
    """Turns what the model returns into what its users want: logits into probabilities, scores into boxes. Traced.

    One function for the evaluation, where predictions are gathered, and for serving. Losses and metrics of a step see
    the model's own outputs.

    Args:
      model_outputs: what the model returned, [batch, ...].

    Returns:
      Tensors [batch, ...], nested in any way; the default returns its argument.
    """
    return model_outputs

  def serving_signatures(self, model: tf_keras.Model) -> Mapping[str, Any]:
    """Returns the functions that an exported model offers, by name. Called under the strategy's scope.

    The default is "serving_default", from the features that the model takes to `postprocess` of its outputs in
    inference mode: a single tensor is called "inputs" or "outputs", others by their keys or places.

    Args:
      model: the model, built.

    Returns:
      name -> `tf.function` with an `input_signature`, or a concrete function, from named tensors to a dictionary of
      tensors. Variables and tables that they use must belong to the model or be attributes of the task.
    """

    def infer(features: Any) -> Any:
      return self.postprocess(self.inference_step(features, model))

    return {DEFAULT_SIGNATURE: serving_function(infer, input_spec(model))}

  def serving_examples(self, signature: str, features: Any) -> Mapping[str, Any]:
    """Turns features of the validation data into inputs of a signature, on which an export is tried.

    Args:
      signature: its name.
      features: arrays [n, ...], nested as the task's data are.

    Returns:
      name -> array [n, ...]. Where they do not fit the signature, random inputs are used.
    """
    del signature
    return named(features, INPUTS)

  def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
    """Gathers a validation step's logs on the host, for metrics that need more than sums.

    Args:
      state: what the previous call returned; None at first.
      step_outputs: key -> tuple with one tensor for each local replica.

    Returns:
      The new state; None if nothing is gathered.
    """
    del state, step_outputs
    return None

  def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: tf.Tensor | None = None) -> dict[str, Any]:
    """Turns the gathered state into metrics, once at the end of an evaluation, on the host."""
    del aggregated_logs, global_step
    return {}

  def _replica_loss(self, model, features, labels, outputs, mask) -> ReplicaLoss:
    presence = tf.ones([_batch_size(features)]) if mask is None else mask
    weight = tf.cast(self.loss_weight(labels, presence), tf.float32)
    aux_losses = model.losses
    if model.compiled_loss:
      # tf-keras divides by the number of replicas, for optimizers that sum; the shares do that here.
      num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
      mean = model.compiled_loss(labels, outputs, sample_weight=mask) * num_replicas
      if mask is not None:
        # tf-keras divides by the padded size; padding contributed nothing to the sum.
        mean *= tf.math.divide_no_nan(tf.cast(tf.size(mask), tf.float32), tf.reduce_sum(mask))
      extra = self.build_losses(labels=labels, model_outputs=outputs, aux_losses=None)
      extra, terms = self._mean_and_terms(extra, mask, weight)
      return ReplicaLoss(mean + _sum_of(aux_losses) + extra, weight, terms)
    loss = self.build_losses(labels=labels, model_outputs=outputs, aux_losses=aux_losses)
    if mask is not None and any(value.shape.rank == 0 for value in tf.nest.flatten(loss)):
      raise ValueError(
        f"{type(self).__name__}.build_losses returned a scalar, but the batch is padded and padding must not count."
        " Return one loss for each example, float [batch], without aux_losses."
      )
    mean, terms = self._mean_and_terms(loss, mask, weight)
    if not isinstance(loss, Mapping) and loss.shape.rank == 0:
      return ReplicaLoss(mean, weight, terms)  # It holds the auxiliary losses.
    return ReplicaLoss(mean + _sum_of(aux_losses), weight, terms)

  def _mean_and_terms(self, loss, mask, weight) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    require_terms(loss, self.loss_terms, type(self).__name__)
    if not isinstance(loss, Mapping):
      return _mean_of(loss, mask, weight), {}
    terms = {name: _mean_of(term, mask, weight) for name, term in loss.items()}
    return weighted_sum(terms, self.loss_terms), terms

  def _logs_of(self, loss: ReplicaLoss) -> dict[str, tf.Tensor]:
    return {self.loss: loss.mean, LOSS_WEIGHT: loss.weight, **loss.terms}

  def _report(self, model, metrics, labels, outputs, loss: ReplicaLoss, mask) -> dict[str, tf.Tensor]:
    logs = self._logs_of(loss)
    # The model updates the metrics that it has itself: in its call, or as the metrics it was compiled with.
    own = [metric for metric in metrics or () if not any(metric is known for known in model.metrics)]
    if own:
      if mask is None:
        self.process_metrics(own, labels, outputs)
      else:
        self.process_metrics(own, labels, outputs, sample_weight=mask)
    if model.compiled_metrics:
      self.process_compiled_metrics(model.compiled_metrics, labels, outputs, mask)
    return logs


def features_and_labels(inputs: Any) -> tuple[Any, Any]:
  """Splits the inputs of a step; features without labels are their own labels."""
  if isinstance(inputs, tuple) and len(inputs) == 2:
    return inputs
  return inputs, inputs


def _batch_size(features: Any) -> tf.Tensor | int:
  first = tf.nest.flatten(features)[0]
  return first.shape[0] if first.shape.rank and first.shape[0] is not None else tf.shape(first)[0]


def _joint_mask(known: tf.Tensor | None, mask: tf.Tensor) -> tf.Tensor:
  """Returns the mask [batch], or [batch, ...] where an output has one already, such as that of padded tokens."""
  if known is None:
    return mask
  return tf.cast(known, mask.dtype) * tf.reshape(mask, [-1] + [1] * (known.shape.rank - 1))


def _mean_of(per_example: tf.Tensor, mask: tf.Tensor | None, weight: tf.Tensor) -> tf.Tensor:
  """Sums real examples and divides by the weight; scalars (a mean already) pass."""
  per_example = tf.cast(per_example, tf.float32)
  if per_example.shape.rank == 0:
    return per_example
  if per_example.shape.rank != 1:
    per_example = tf.reduce_sum(per_example, axis=list(range(1, per_example.shape.rank)))
  if mask is not None:
    per_example = tf.math.multiply_no_nan(per_example, mask)
  # Without examples the sum is 0, and so is the mean; a constant weight leaves a plain division in the graph.
  return tf.reduce_sum(per_example) / tf.where(weight > 0, weight, tf.ones_like(weight))


def _sum_of(aux_losses: Sequence[tf.Tensor] | None) -> tf.Tensor:
  return tf.cast(tf.add_n(aux_losses), tf.float32) if aux_losses else tf.constant(0.0)
