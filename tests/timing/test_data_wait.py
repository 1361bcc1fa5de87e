import tensorflow as tf

from official_trainer.timing.data_wait import DataWait, NoDataWait, build_data_wait


def loop_over(dataset, wait, num_steps):
  iterator = iter(dataset)
  total = tf.Variable(0, dtype=tf.int64)

  @tf.function
  def loop():
    for _ in tf.range(num_steps):
      total.assign_add(wait.timed(lambda: next(iterator)))

  loop()
  return int(total)


def test_a_batch_that_is_long_in_coming_is_waited_for_and_the_batches_are_the_same(monkeypatch):
  # Time stands still but for the input, which moves the clock by a second for each batch.
  now = tf.Variable(0.0, dtype=tf.float64)
  monkeypatch.setattr(tf, "timestamp", lambda: now.read_value())

  class Slow:
    def __init__(self):
      self.number = tf.Variable(0, dtype=tf.int64)

  slow = Slow()
  wait = DataWait()

  def next_inputs():
    now.assign_add(1.0)
    return slow.number.assign_add(1)

  @tf.function
  def loop():
    for _ in tf.range(4):
      wait.timed(next_inputs)

  loop()
  assert wait.take() == 4.0
  assert wait.take() == 0.0
  assert int(slow.number) == 4


def test_a_real_pipeline_gives_what_it_gives_without_being_timed():
  dataset = tf.data.Dataset.range(10)
  wait = DataWait()
  assert loop_over(dataset, wait, 5) == loop_over(dataset, NoDataWait(), 5) == 10
  assert wait.take() > 0.0
  assert NoDataWait().take() is None


def test_nothing_is_measured_where_no_clock_may_be_read(monkeypatch):
  monkeypatch.delenv("TF_DETERMINISTIC_OPS", raising=False)
  assert isinstance(build_data_wait(False), DataWait)
  assert isinstance(build_data_wait(True), NoDataWait)
  monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
  assert isinstance(build_data_wait(False), NoDataWait)
