"""The faults that users of trainers report, and what is right instead. No TensorFlow, so that it can be read quickly.

`not_yet` says what this project does not have, so that the fault cannot be asked about. A fault without it has a probe.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
  """One fault.

  Attributes:
    number: its place in the list, which goes by harm.
    area: what it is about.
    title: the symptom.
    right: what happens instead in a trainer without it.
    not_yet: what is missing here, or None.
  """

  number: int
  area: str
  title: str
  right: str
  not_yet: str | None = None


CHECKPOINT = "checkpoints"
BEST = "best weights"
EVALUATION = "evaluation"
AVERAGES = "averages"
DATA = "data"
CONFIG = "config"
REPORTS = "reports"
WORKERS = "workers"
DETECTION = "detection"
PROCESS = "process"

_SERVERS = "a probe (tests/parameter_servers hold it)"
_DETECTION = "detection"

FAULTS = (
  Fault(1, WORKERS, "Only the chief of a collective job is restored; the others begin anew",
        "All processes go on from the same step with the same weights."),
  Fault(2, DATA, "A resumed run sees the head of the data again",
        "It sees the examples that the uninterrupted run would have seen, in that order."),
  Fault(3, BEST, "One NaN blocks every later best",
        "A value that is not a number is never the best, and the next real one beats it."),
  Fault(4, BEST, "The record of the best is ahead of its weights",
        "Weights are written first; after a crash between the two, record and weights still agree."),
  Fault(5, EVALUATION, "The validation loss depends on the batch size",
        "It is the mean over the examples."),
  Fault(6, EVALUATION, "A replica without examples turns the loss into NaN",
        "It contributes nothing."),
  Fault(7, AVERAGES, "Training goes on with averaged weights after an evaluation that failed",
        "The raw weights are back, bit for bit, whatever ended the evaluation."),
  Fault(8, AVERAGES, "A checkpoint written during an evaluation holds averages in the place of weights",
        "Raw weights and averages each have their own name in a checkpoint, whenever it is written."),
  Fault(9, AVERAGES, "Averages are used before there are any, or lean towards zero",
        "They start as a copy of the weights, at their start step, and not before."),
  Fault(10, DATA, "Steps are counted after the data have ended, or their end is an error",
        "The run stops at the last real step, saves, evaluates and says what is missing."),
  Fault(11, CHECKPOINT, "Poisoned weights are saved, so every restart fails",
        "No checkpoint holds a value that is not finite."),
  Fault(12, PROCESS, "SIGTERM loses everything since the last interval",
        "The step that was reached is saved, and the exit code asks for another start."),
  Fault(13, CHECKPOINT, "The steps since the last interval are lost when the run ends, or its last evaluation fails",
        "The last step is always saved."),
  Fault(14, CHECKPOINT, "A broken newest checkpoint ends the run although older ones are good",
        "It is set aside with a message, and the next older one is used."),
  Fault(15, CHECKPOINT, "A lost state file starts the run from zero",
        "Checkpoints are found from their own files."),
  Fault(16, CHECKPOINT, "A checkpoint of another model loads by halves, without a word",
        "It is refused, with the names on both sides."),
  Fault(17, BEST, "The best is forgotten by a restart, and a worse one replaces it",
        "The best stays the best, raw or averaged."),
  Fault(18, BEST, "The best weights, or the last, vanish with old checkpoints",
        "Both are there, whatever is kept and whatever the intervals."),
  Fault(19, EVALUATION, "An evaluation without a checkpoint scores random weights",
        "It is an error."),
  Fault(20, EVALUATION, "An empty validation set scores perfectly",
        "It is an error, and nothing is exported."),
  Fault(21, EVALUATION, "An evaluation leaves out the remainder, or counts it twice",
        "Each example counts once, for any batch size and number of replicas."),
  Fault(22, CHECKPOINT, "The place in the data is lost under several replicas",
        "A resumed run goes on with the next global batch there too."),
  Fault(23, DATA, "Uneven replicas pull with uneven force",
        "The gradient is that of the mean over the global batch, however the examples fall."),
  Fault(24, AVERAGES, "Swapping averages in and out loses bits of the weights",
        "Two swaps restore every bit."),
  Fault(25, AVERAGES, "Averages do not run under float16",
        "They do, with a dynamic and with a fixed loss scale."),
  Fault(26, AVERAGES, "The average is thrown away after a restart",
        "It goes on as if nothing had happened."),
  Fault(27, WORKERS, "More workers of a parameter server make nothing faster",
        "They do, and the step counter is exact.", _SERVERS),
  Fault(28, DETECTION, "Images repeated to fill a batch count twice in detection metrics",
        "Each image counts once.", _DETECTION),
  Fault(29, DETECTION, "No detections crash the metric, or make it -1 or NaN",
        "They score 0.", _DETECTION),
  Fault(30, REPORTS, "The last batch is logged for the whole loop",
        "Event files, returned values and records all hold the mean."),
  Fault(31, BEST, "A misspelt metric is found after hours",
        "It is refused before the first step, with the names that are reported."),
  Fault(32, BEST, "The direction of a metric is taken the wrong way",
        "It follows from the name or is refused; an unknown word is refused with the known ones."),
  Fault(33, PROCESS, "A finished run started again does nothing, or everything",
        "It trains nothing and evaluates once."),
  Fault(34, PROCESS, "The patience of early stopping starts again after a restart",
        "It is part of the state."),
  Fault(35, CHECKPOINT, "The learning rate is wrong after a restart",
        "It is that of the uninterrupted run at every step."),
  Fault(36, DATA, "A checkpoint near the end of an epoch repeats examples or skips an epoch",
        "Before, at and behind the end of an epoch the order goes on."),
  Fault(37, REPORTS, "A loss that is NaN is hidden from the log",
        "It is shown, or the run says that it diverged."),
  Fault(38, CONFIG, "A new run in an old folder goes on with the old one",
        "Another config is refused, key by key, and nothing is overwritten."),
  Fault(39, CHECKPOINT, "The last checkpoint is not the last",
        "It holds the final step."),
  Fault(40, PROCESS, "What a run does not use is imported, or has to be installed",
        "It is not imported."),
  Fault(41, AVERAGES, "Averaged kernels are evaluated with raw statistics of batch normalisation",
        "All variables are averaged, and the raw ones are back afterwards."),
  Fault(42, DATA, "A recovery from a blow-up restores nothing, or skips nothing",
        "The run goes back, steps over the bad batch, and ends at the step asked for."),
  Fault(43, PROCESS, "A signal during an evaluation is missed",
        "The raw weights of the training step are saved, and the run ends."),
  Fault(44, CHECKPOINT, "A kill while saving leaves a checkpoint that cannot be read",
        "The next start finds a whole one."),
  Fault(45, WORKERS, "Evaluation and the end of the data fail under parameter servers",
        "Each example counts once, and data that end, end the run.", _SERVERS),
  Fault(46, EVALUATION, "Sums shrink with the number of replicas",
        "The counts add up to the size of the set for 1, 2 and 3 replicas."),
  Fault(47, EVALUATION, "A late evaluator skips checkpoints, or dies when one vanishes",
        "It evaluates each that is there once, in order."),
  Fault(48, BEST, "Evaluations that never gave a number crash the end of the run",
        "The run ends well, and nothing is exported."),
  Fault(49, CHECKPOINT, "The loss scale is not in the checkpoint",
        "A resumed mixed-precision run has the scale that it had."),
  Fault(50, CHECKPOINT, "The same dropout masks come again after a restart",
        "Random draws go on as in the uninterrupted run."),
  Fault(51, DATA, "Accumulated gradients are not those of the large batch",
        "They are, to rounding."),
  Fault(52, DETECTION, "Images without objects break the box loss",
        "Box terms are 0, and everything is finite.", _DETECTION),
  Fault(53, DETECTION, "The detection example does not start",
        "One command trains and evaluates it without a download.", _DETECTION),
  Fault(54, EVALUATION, "Memory grows with the size of an evaluation",
        "Only sums are kept."),
  Fault(55, WORKERS, "Only one process takes part in a save",
        "All do, and only the chief leaves files."),
  Fault(56, WORKERS, "Sharding fails for few files, or does nothing",
        "Each example is seen once over all workers."),
  Fault(57, REPORTS, "The speed includes the evaluation",
        "Steps per second are those of training."),
  Fault(58, CONFIG, "1e-3 is taken for text",
        "It is a number; what is not one is refused with its key."),
  Fault(59, CONFIG, "A saved config cannot be read back",
        "params.yaml alone starts the same run."),
  Fault(60, CONFIG, "A flag that was not given overwrites a value",
        "Default, then files in order, then overrides; a flag left out changes nothing."),
  Fault(61, REPORTS, "Intervals are off by one, or leave their grid after a restart",
        "Saves and evaluations fall on multiples of their interval, and on the last step."),
  Fault(62, PROCESS, "Ctrl-C saves nothing, or passes for success",
        "The step reached is saved, and the exit code is 130."),
  Fault(63, CHECKPOINT, "A restored run is not the uninterrupted one",
        "With Adam and fixed data it has the same weights, bit for bit."),
  Fault(64, CONFIG, "A Keras 3 model fails deep inside",
        "One line says that it must be tf_keras."),
  Fault(65, CHECKPOINT, "Another batch size loses the place in the data",
        "The next example is the one that was next."),
  Fault(66, DATA, "Finding the place in the data reads everything before it",
        "The next batch is read, and little else."),
  Fault(67, EVALUATION, "Every evaluation costs more memory",
        "Memory stays where it is after the first rounds."),
  Fault(68, WORKERS, "Workers hang when one fails",
        "All end, and say which one failed."),
  Fault(69, REPORTS, "Curves fold back after a restart",
        "One point a step."),
  Fault(70, REPORTS, "The log is flooded",
        "At most one line a loop, and no carriage returns."),
  Fault(71, EVALUATION, "The same step is traced again and again",
        "Two traces at most, whatever the lengths of loops and the last batch."),
  Fault(72, EVALUATION, "There is only one validation set",
        "Several, each with its names, and the best by any of them."),
  Fault(73, CONFIG, "Settings have no description",
        "Each has a text."),
  Fault(74, DATA, "A large shuffle makes a large checkpoint, or another order",
        "The order is exact, and the checkpoint no larger than the model."),
  Fault(75, DATA, "The order is the same in every epoch, or in no two runs",
        "One seed gives one order, each epoch another."),
  Fault(76, CHECKPOINT, "What is saved in the background is not the state of its step",
        "It is, and the end of the run waits for it."),
  Fault(77, BEST, "The best weights do not give the value that chose them",
        "Evaluating them gives the recorded value exactly."),
  Fault(78, DETECTION, "Quality falls with the batch size of the evaluation",
        "Images padded together give the same as alone.", _DETECTION),
)  # fmt: skip

BY_NUMBER = {fault.number: fault for fault in FAULTS}
