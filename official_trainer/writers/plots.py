"""The curves of a run as one picture."""

from __future__ import annotations

import io
import itertools
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from official_trainer import atomic
from official_trainer.writers import formats
from official_trainer.writers.base import Rows, number

_COLORS = {"train": "#4c78a8", "validation": "#e4572e"}
_OTHER_COLORS = ("#54a24b", "#b279a2", "#eeca3b", "#72b7b2", "#9d755d", "#ff9da6")
"""Of evaluation sets, and of the parts of a metric, such as those of parameter groups; over again where they end."""

_MARKED_POINTS = 40
"""A curve with at most so many points shows each of them."""

_LABEL_WIDTH = 28
"""Characters of a metric's name that fit along the height of a panel."""

_Curve = list[tuple[int, float]]


def plot_history(
  rows: Rows,
  path_png: str | os.PathLike[str],
  title: str,
  *,
  best: Mapping[str, int] | None = None,
) -> None:
  """Draws the history to a PNG file, which is replaced atomically.

  One panel a metric, in two columns, with training, validation and evaluation sets in the same panel,
  and with its parts: "norm/head" is drawn beside "norm". Losses come first and the learning rate
  last. A value that is not finite leaves a gap and a cross at the foot of its panel.

  Args:
    rows: (step, mode, metrics), the whole history.
    path_png: where to put the picture, on any file system of `tf.io.gfile`.
    title: what stands above all panels.
    best: metric name -> the step of its best validation result, which gets a star. Steps without a
      finite result are left unmarked.
  """
  # Drawn on a canvas of its own: `pyplot` would choose a backend for the whole process.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  panels = _panels(rows)
  marks = {formats.shared_name(name): step for name, step in (best or {}).items()}
  num_columns = min(2, max(1, len(panels)))
  num_rows = max(1, math.ceil(len(panels) / num_columns))
  figure = Figure(figsize=(6 * num_columns, 0.5 + 2.9 * num_rows), dpi=120, layout="constrained")
  canvas = FigureCanvasAgg(figure)
  figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
  figure.suptitle(title)
  if not panels:
    figure.text(0.5, 0.5, "no results yet", ha="center", va="center", color="0.5")
  for index, name in enumerate(panels):
    axes = figure.add_subplot(num_rows, num_columns, index + 1)
    _draw(axes, name, panels[name], marks.get(name))
  picture = io.BytesIO()
  canvas.print_png(picture)
  atomic.write_bytes(path_png, picture.getvalue())


def _panels(rows: Rows) -> dict[str, dict[tuple[str, str], _Curve]]:
  """Returns panel -> (mode, metric name) -> curve, panels in the order in which they are drawn."""
  panels: dict[str, dict[tuple[str, str], _Curve]] = {}
  wholes = {formats.shared_name(name) for _, _, metrics in rows for name in metrics}
  for step, mode, metrics in rows:
    for name, value in metrics.items():
      shared = formats.shared_name(name)
      whole = shared.partition("/")[0]
      curves = panels.setdefault(whole if whole in wholes else shared, {})
      curves.setdefault((mode, name), []).append((step, number(name, value)))
  return {name: panels[name] for name in formats.in_order(panels)}


def _draw(axes: Any, panel: str, curves: Mapping[tuple[str, str], _Curve], best: int | None) -> None:
  others = itertools.cycle(_OTHER_COLORS)
  for (mode, name), curve in sorted(curves.items()):
    part = formats.shared_name(name).removeprefix(panel).removeprefix("/")
    color = _COLORS[mode] if mode in _COLORS and not part else next(others)
    steps, values = zip(*curve, strict=True)
    axes.plot(
      steps,
      [value if math.isfinite(value) else math.nan for value in values],
      label=f"{mode} {part}".strip(),
      color=color,
      linewidth=1.5,
      marker="o" if len(curve) <= _MARKED_POINTS or _has_lone_point(values) else None,
      markersize=3.5,
    )
    lost = [step for step, value in curve if not math.isfinite(value)]
    if lost:
      # At a height of the axes, not of the data, and inside the frame.
      axes.plot(
        lost,
        [0.03] * len(lost),
        transform=axes.get_xaxis_transform(),
        label="not finite",
        color=color,
        linestyle="",
        marker="x",
        markersize=6,
      )
    if mode == "validation" and not part:
      _draw_best(axes, curve, best)
  axes.set_xlabel("step")
  axes.set_ylabel(_wrapped(panel))
  axes.margins(y=0.1)
  axes.grid(color="0.9", linewidth=0.8)
  axes.set_axisbelow(True)
  axes.spines[["top", "right"]].set_visible(False)
  axes.xaxis.get_major_locator().set_params(integer=True)
  # Above the frame, where it hides no part of a curve.
  axes.legend(
    frameon=False,
    fontsize="small",
    loc="lower right",
    bbox_to_anchor=(1, 1),
    borderaxespad=0,
    ncols=5,
    columnspacing=1.2,
    handlelength=1.2,
  )


def _draw_best(axes: Any, curve: _Curve, best: int | None) -> None:
  for step, value in curve:
    if step == best and math.isfinite(value):
      label = f"best: {formats.value(value)} at step {step}"
      color = _COLORS["validation"]
      axes.plot([step], [value], label=label, color=color, linestyle="", marker="*", markersize=12)


def _wrapped(name: str) -> str:
  """Returns the name in lines that fit beside a panel, broken after slashes and underscores."""
  lines = [""]
  for part in re.split(r"(?<=[/_ ])", name):
    if len(lines[-1]) + len(part) > _LABEL_WIDTH and lines[-1]:
      lines.append("")
    lines[-1] += part
  return "\n".join(lines)


def _has_lone_point(values: tuple[float, ...]) -> bool:
  """Returns whether a finite value has no finite neighbour: a line alone would not show it."""
  finite = [False, *map(math.isfinite, values), False]
  return any(
    here and not before and not after for before, here, after in zip(finite, finite[1:], finite[2:], strict=False)
  )
