import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.optim.config import EmaConfig
from official_trainer.state import HostState
from tests import tiny


def filled() -> HostState:
  host = HostState()
  host.history.append(2, "train", {"loss": 0.5})
  host.best["best_ckpt"] = {"accuracy": 0.9, "best_ckpt_global_step": 2}
  host.last_eval_step = 2
  host.anchor = {"step": 0, "position": 0, "global_batch_size": 4}
  host.window = {"training_loss": [[{"dtype": "<f4", "shape": [], "data": "AAAAAA=="}]]}
  host.extras["plateau"] = {"bad_evals": 1}
  return host


def test_the_host_state_is_a_function_of_its_text():
  host, copy = filled(), HostState()
  copy.loads(host.dumps())
  assert copy.dumps() == host.dumps()
  assert copy.history.rows == host.history.rows
  assert copy.extras == {"plateau": {"bad_evals": 1}}


def test_equal_states_have_equal_texts_whatever_the_order_they_were_filled_in():
  one, two = HostState(), HostState()
  for name in ("a", "b"):
    one.extras[name] = 1
  for name in ("b", "a"):
    two.extras[name] = 1
  assert one.dumps() == two.dumps()


def test_what_others_hold_on_to_is_filled_and_not_replaced():
  host = HostState()
  best, extras = host.best, host.extras
  host.loads(filled().dumps())
  assert best is host.best and best["best_ckpt"]["accuracy"] == 0.9
  assert extras is host.extras and extras["plateau"] == {"bad_evals": 1}
  host.clear()
  assert best == {} and extras == {}


def test_clearing_gives_a_new_state():
  host = filled()
  host.clear()
  assert host.dumps() == HostState().dumps()


def test_values_that_are_not_finite_survive():
  host, copy = HostState(), HostState()
  host.history.append(2, "train", {"loss": float("nan"), "other": float("-inf")})
  copy.loads(host.dumps())
  assert copy.dumps() == host.dumps()


def test_a_text_of_a_newer_version_is_refused():
  newer = json.dumps({**json.loads(HostState().dumps()), "format_version": 99})
  with pytest.raises(ValueError, match="has format 99; this version reads up to 2. Update"):
    HostState().loads(newer)


# As version 1 wrote it, in the middle of a run.
VERSION_1 = (
  '{"anchor": {"batch": 0, "global_batch_size": 4, "position": 0}, "best": {"best_ckpt": {"accuracy": 0.75, '
  '"best_ckpt_global_step": 2}}, "extras": {"mine": 1}, "format_version": 1, "history": [[2, "train", '
  '{"accuracy": 0.5, "training_loss": 0.7}], [2, "validation", {"accuracy": 0.75}]], "last_eval_step": 2, '
  '"window": null}'
)


def test_t55_a_state_of_an_older_version_is_read_and_written_in_the_new_form():
  host = HostState()
  host.loads(VERSION_1)
  assert host.anchor == {"batch": 0, "global_batch_size": 4, "position": 0}
  assert host.best == {"best_ckpt": {"accuracy": 0.75, "best_ckpt_global_step": 2}}
  assert (host.extras, host.last_eval_step, host.window, host.spent_secs) == ({"mine": 1}, 2, None, None)
  assert host.history.named_series("accuracy") == [(2, 0.75)]
  written = json.loads(host.dumps())
  assert written == {**json.loads(VERSION_1), "format_version": 2, "spent_secs": None}


# ---- The whole state --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built():
  return tiny.build("unused", ema=EmaConfig(), task={"batchnorm": True})


@pytest.fixture
def state(built):
  built.state.host.clear()
  return built.state


def test_t1_d31_the_checkpoint_has_one_root_for_each_part(state, tmp_path):
  with state.packed() as checkpoint:
    prefix = checkpoint.write(str(tmp_path / "ckpt-0"))
  names = {name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for name in tiny.contents(prefix)}
  assert {name.partition("/")[0] for name in names} == {"model", "optimizer", "ema", "global_step", "host"}
  # Every one of these names is a promise to whoever reads a checkpoint later.
  assert names == {
    *(f"ema/{index}" for index in range(6)),
    "global_step",
    "host",
    *(f"model/layer_with_weights-0/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")),
    *(f"model/layer_with_weights-1/{name}" for name in ("kernel", "bias")),
    "optimizer/_iterations",
    "optimizer/_learning_rate",
    *(f"optimizer/_variables/{index}" for index in range(1, 9)),
  }


def test_without_averages_and_without_an_optimizer_their_roots_are_missing(tmp_path):
  state = tiny.build("unused", mode="eval").state
  with state.packed() as checkpoint:
    prefix = checkpoint.write(str(tmp_path / "ckpt-0"))
  assert {name.partition("/")[0] for name in tiny.contents(prefix)} == {
    "model",
    "global_step",
    "host",
  }


def test_the_host_state_comes_back_with_the_rest(state, tmp_path):
  state.host.loads(filled().dumps())
  state.global_step.assign(2)
  with state.packed() as checkpoint:
    prefix = checkpoint.write(str(tmp_path / "ckpt-2"))
  state.host.clear()
  state.global_step.assign(0)
  state.checkpoint.read(prefix)
  state.unpack()
  assert state.step == 2
  assert state.host.dumps() == filled().dumps()


def test_a_checkpoint_without_host_state_leaves_none_behind(state):
  state.host.loads(filled().dumps())
  with state.packed():
    pass
  state._packed.assign("")
  state.unpack()
  assert state.host.dumps() == HostState().dumps()


def test_what_is_packed_while_the_averages_are_in_place_is_under_the_right_names(state, tmp_path):
  for average in state.ema.averages:
    average.assign(tf.fill(average.shape, 5.0))
  raw = [variable.numpy() for variable in state.model.variables]
  with state.ema.swapped_in(10):
    assert all((variable.numpy() == 5.0).all() for variable in state.model.variables)
    with state.packed() as checkpoint:
      prefix = checkpoint.write(str(tmp_path / "ckpt-1"))
    assert all((variable.numpy() == 5.0).all() for variable in state.model.variables)
  for variable, value in zip(state.model.variables, raw, strict=True):
    np.testing.assert_array_equal(variable.numpy(), value)
  saved = tiny.contents(prefix)
  kernel = saved["model/layer_with_weights-1/kernel/.ATTRIBUTES/VARIABLE_VALUE"]
  np.testing.assert_array_equal(kernel, state.model.layers[-1].kernel.numpy())
  averages = [value for name, value in saved.items() if name.startswith("ema/")]
  assert all((average == 5.0).all() for average in averages)


def test_weights_averages_and_slots_must_be_finite_and_counters_need_not(state):
  checked = state.finite_variables()
  assert all(variable.dtype.is_floating for variable in checked)
  weights, averages = state.model.variables, state.ema.averages
  slots = [v for v in state.optimizer.variables if v.dtype.is_floating]
  assert {id(v) for v in checked} == {id(v) for v in (*weights, *averages, *slots)}
  assert len(slots) == 2 * len(state.model.trainable_variables)  # Of Adam.
