"""A run whose batches other processes make is the run that makes them itself."""

import os

import pytest

from tests import network, tiny

SERVICE = {"enable_tf_data_service": True, "num_tf_data_service_workers": 2}


@pytest.mark.slow
def test_a_run_through_a_data_service_that_crashes_ends_with_the_bits_of_one_without(tmp_path):
  tiny.build(tmp_path / "whole", **tiny.EVERYTHING).run()
  with pytest.raises(tiny.Interrupted):
    tiny.build(
      tmp_path / "served", train_data=SERVICE, exact_resume=True, session=tiny.interrupted_by(8), **tiny.EVERYTHING
    ).run()
  with network.loopback_only(lambda: [os.getpid()]) as watch:
    resumed = tiny.build(tmp_path / "served", train_data=SERVICE, exact_resume=True, **tiny.EVERYTHING)
    resumed.run()
  assert watch.local
  assert "resumed at step 6" in resumed.said
  assert "through a tf.data service (exact" in resumed.said
  tiny.assert_same_contents(tmp_path / "served/ckpt-13", tmp_path / "whole/ckpt-13")
  assert tiny.rows(tmp_path / "served") == tiny.rows(tmp_path / "whole")


@pytest.mark.slow
def test_a_pipeline_through_a_data_service_is_refused_where_exact_resume_is_asked_for(tmp_path):
  class Pipeline(tiny.TinyTask):
    def build_source(self, params):
      return None

    def build_inputs(self, params, input_context=None):
      dataset = tiny.FiniteTask.build_inputs(self, params)
      return dataset.repeat() if params.is_training else dataset

  with pytest.raises(ValueError, match="exact_resume is set, but input position: not kept, since a tf.data service"):
    tiny.build(tmp_path, task_class=Pipeline, train_data={"enable_tf_data_service": True}, exact_resume=True)
  trained = tiny.build(tmp_path, task_class=Pipeline, train_data={"enable_tf_data_service": True})
  assert trained.run().step == 6
  assert "each element is given once an epoch" in trained.said
