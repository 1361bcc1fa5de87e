import numpy as np
import pytest

from official_trainer.checkpoint import resizing
from official_trainer.checkpoint.resizing import position_embedding, position_embedding_2d, register_resize
from official_trainer.errors import ConfigError


def table(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_line_of_positions_is_interpolated_between_its_ends():
  value = np.array([[0.0, 10.0], [1.0, 20.0], [4.0, 0.0]], np.float32)
  resized = position_embedding(value, (5, 2))
  assert resized.tolist() == [[0.0, 10.0], [0.5, 15.0], [1.0, 20.0], [2.5, 10.0], [4.0, 0.0]]
  assert position_embedding(value[np.newaxis], (1, 2, 2)).tolist() == [[[0.0, 10.0], [4.0, 0.0]]]


@pytest.mark.parametrize("shape", [(7, 3), (1, 7, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_as_many_positions_as_before_are_the_same_bits(shape, dtype):
  value = table(*shape).astype(dtype)
  resized = position_embedding(value, shape)
  assert resized.dtype == dtype and resized.tobytes() == value.tobytes()


def test_a_single_position_is_repeated():
  assert position_embedding(np.array([[3.0]], np.float32), (2, 1)).tolist() == [[3.0], [3.0]]


def cubic(distance):
  """Keys's kernel with a = -0.5."""
  d = abs(distance)
  if d < 1:
    return 1.5 * d**3 - 2.5 * d**2 + 1
  return -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2 if d < 2 else 0.0


def weights(old, new):
  """Returns the matrix that resizes one side, with weights that sum to 1 at the border."""
  matrix = np.zeros((new, old))
  for row in range(new):
    place = (row + 0.5) * old / new - 0.5
    matrix[row] = [cubic(column - place) for column in range(old)]
  return matrix / matrix.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("old", "new"), [(4, 6), (6, 4), (3, 9)])
def test_a_square_of_positions_is_interpolated_bicubically(old, new):
  value = table(1, old * old, 2)
  resized = position_embedding_2d(value, (1, new * new, 2))
  side = weights(old, new)
  expected = np.einsum("iy,jx,yxd->ijd", side, side, value.reshape(old, old, 2))
  np.testing.assert_allclose(resized.reshape(new, new, 2), expected, atol=2e-3)  # TensorFlow's kernel is a table.


def test_the_class_token_is_copied_or_left_out_and_the_same_grid_keeps_its_bits():
  value = table(1, 17, 3)
  grown = position_embedding_2d(value, (1, 37, 3))
  assert grown[:, 0].tobytes() == value[:, 0].tobytes()
  np.testing.assert_array_equal(grown[:, 1:], position_embedding_2d(value[:, 1:], (1, 36, 3)))
  np.testing.assert_array_equal(position_embedding_2d(value[0], (16, 3)), value[0, 1:])


@pytest.mark.parametrize(
  ("function", "value", "shape", "message"),
  [
    (position_embedding, (4, 3), (8, 2), "with one d, got"),
    (position_embedding, (2, 4, 3), (2, 8, 3), r"is \[n, d\] or \[1, n, d\]"),
    (position_embedding, (4, 3), (1, 8, 3), "got"),
    (position_embedding, (0, 3), (4, 3), "got"),
    (position_embedding_2d, (16, 3), (20, 3), "20 positions are no square"),
    (position_embedding_2d, (15, 3), (16, 3), "15 positions are no square"),
    (position_embedding_2d, (16, 3), (26, 3), r"class token \(26 positions\), the value has none \(16\)"),
  ],
)
def test_what_is_no_table_of_positions_is_refused(function, value, shape, message):
  with pytest.raises(ValueError, match=message):
    function(np.zeros(value, np.float32), shape)


@pytest.fixture
def registry(monkeypatch):
  monkeypatch.setattr(resizing._NAMED, "_things", dict(resizing._NAMED._things))


def test_functions_of_users_are_found_by_their_names(registry):
  @register_resize("first_rows")
  def first_rows(value, shape):
    return value[: shape[0]]

  assert resizing.resize_function("first_rows", "task.init.resize.0") is first_rows


def test_an_unknown_name_is_refused_with_the_nearest(registry):
  with pytest.raises(ConfigError) as raised:
    resizing.resize_function("position_embeding", "task.init.resize.0")
  text = "there is no function for another shape 'position_embeding'. Did you mean 'position_embedding'?"
  assert f"task.init.resize.0: {text}" in str(raised.value)


def test_two_functions_of_one_name_are_refused_and_a_module_may_be_loaded_again(registry):
  def function(value, shape):
    return value

  register_resize("mine")(function)
  register_resize("mine")(function)
  with pytest.raises(ConfigError, match="function for another shape 'position_embedding': is registered twice"):
    register_resize("position_embedding")(function)
