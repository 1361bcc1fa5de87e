"""How a config field is declared: its default, its text, its limits."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import annotated_types as limits

Count = Annotated[int, limits.Ge(0)]
"""A whole number, 0 allowed."""

Positive = Annotated[int, limits.Ge(1)]
"""A whole number of at least 1."""

Fraction = Annotated[float, limits.Ge(0.0), limits.Le(1.0)]
"""A number from 0 to 1, both included."""

Share = Annotated[float, limits.Gt(0.0), limits.Le(1.0)]
"""A number above 0 and at most 1."""

NonNegative = Annotated[float, limits.Ge(0.0)]
"""A number of at least 0."""

AboveZero = Annotated[float, limits.Gt(0.0)]
"""A number greater than 0."""


def setting(
  default: Any = dataclasses.MISSING,
  text: str = "",
  *,
  factory: Callable[[], Any] | None = None,
  only_default: str | None = None,
  epochs_of: str | None = None,
) -> Any:
  """Declares one documented field of a frozen, keyword-only config dataclass.

  Args:
    default: The value when nobody sets the field. Leave it out when `factory` is given.
    text: Meaning, unit, and when the value takes effect. Shown in the config reference.
    factory: Makes the default, for values that are dataclasses themselves.
    only_default: Set for a name that is kept so that configs written for Model Garden load, but
      whose other values have no effect here and are refused. Says why, or what to use instead.
    epochs_of: Set for a number of epochs, or None, that says the same as another field of this
      dataclass, in steps: the name of that field. Both together are refused.

  Returns:
    A `dataclasses.field`.
  """
  metadata = {"text": text, "only_default": only_default, "epochs_of": epochs_of}
  if factory is not None:
    return dataclasses.field(default_factory=factory, metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneOf:
  """A choice: `type` names the field that counts, every other field is one kind with its settings.

  Subclasses narrow `type` to a `Literal` of their field names. Written out, a choice shows the
  chosen kind, and the others only where they differ from their defaults.

  Attributes:
    shorthand: (kind, key) that a single value written in place of the choice stands for, or None:
      `warmup: 5%` is `warmup: {type: linear, linear: {warmup_steps: 5%}}`.
  """

  shorthand: ClassVar[tuple[str, str] | None] = None

  type: str | None = setting(None, "The kind in use: the name of one of the fields below, or null.")

  def get(self) -> Any:
    """Returns the settings of the chosen kind, or None when nothing is chosen."""
    return None if self.type is None else getattr(self, self.type)
