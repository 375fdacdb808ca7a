"""Which layers, heads and directions a router uses (ICR paper, Sec. 4 and App. C)."""

import math
from collections import Counter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import dendrogram, linkage
from scipy.spatial.distance import squareform
from scipy.stats import rankdata

from icrbench.report.figures.sources import Floats, Routing
from icrbench.report.figures.style import DIVERGING, GREY, PALETTE, SEQUENTIAL, headline, new_figure
from icrbench.report.text.names import display_name

NUMBERS_FIT = 12  # columns of a heat map whose cells have room for two digits


def layer_importance(found: Routing) -> Figure:
    """Draw the importance of each routed layer: the mean over tasks as bars, each task as a heat map below."""
    share = 100 * found.layer
    figure = new_figure(1.5 + 0.16 * len(found.tasks))
    bars, heat = figure.subplots(2, 1, sharex=True, height_ratios=[0.9, 0.16 * len(found.tasks)])
    places = np.arange(len(found.layers))
    mean = share.mean(axis=0)
    bars.bar(places, mean, width=0.7, color=PALETTE[0])
    if len(places) <= NUMBERS_FIT:
        for place, value in zip(places, mean, strict=True):
            bars.annotate(f"{value:.0f}", (float(place), float(value)), (0, 1), textcoords="offset points", ha="center")
    bars.set_ylabel("mean, %")
    bars.margins(y=0.2)
    _heat(heat, share, [f"{value:.0f}" for value in share.flat], SEQUENTIAL, 0.0, max(float(share.max()), 1e-9))
    heat.set_xticks(places, [str(layer) for layer in found.layers])
    heat.set_yticks(np.arange(len(found.tasks)), list(found.tasks))
    heat.set_xlabel("layer, counted from 0")
    headline(figure, "Layer importance, % of a task's sum", _about(found))
    return figure


def top_heads(found: Routing) -> dict[tuple[int, int], int]:
    """By layer and head: for how many tasks it is the head with the largest mean gate of its layer."""
    return dict(
        Counter(
            (layer, int(head))
            for by_layer in found.head
            for layer, head in zip(found.layers, by_layer.argmax(1), strict=True)
        )
    )


def heads(found: Routing) -> Figure:
    """Draw a radar of top heads (spokes are layers, rings are heads): of every task, and of most tasks."""
    figure = new_figure(3.8)
    axes = figure.add_subplot(projection="polar")
    axes.set_theta_zero_location("N")  # type: ignore[attr-defined]
    axes.set_theta_direction(-1)  # type: ignore[attr-defined]
    angle = {layer: 2 * math.pi * place / len(found.layers) for place, layer in enumerate(found.layers)}
    count, most = found.head.shape[2], len(found.tasks)
    for by_layer in found.head:
        tops = [int(head) + 1 for head in by_layer.argmax(1)]
        around = [*angle.values(), next(iter(angle.values()))]
        axes.plot(around, [*tops, tops[0]], color=GREY, linewidth=0.4, alpha=0.5, zorder=1)
    for (layer, head), tasks in sorted(top_heads(found).items()):
        agreed = 2 * tasks > most
        size = 40 + 30 * tasks / most
        color = PALETTE[1] if agreed else "white"
        axes.scatter([angle[layer]], [head + 1], s=size, color=color, edgecolors=PALETTE[1 if agreed else 0], zorder=3)
        axes.annotate(
            str(tasks),
            (angle[layer], head + 1),
            ha="center",
            va="center",
            fontsize=5.5,
            color="white" if agreed else PALETTE[0],
            zorder=4,
        )
    axes.set_xticks(list(angle.values()), [f"L{layer}" for layer in found.layers])
    shown = range(1, count + 1, max(1, math.ceil(count / 8)))
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # of the lines below
    axes.set_yticks(list(shown), [f"h{head - 1}" for head in shown], color=GREY, bbox=clear)
    axes.set_ylim(0, count + 0.7)
    axes.set_rorigin(-0.35 * count)  # type: ignore[attr-defined] # room for the innermost rings
    axes.tick_params(axis="x", pad=-2)
    axes.set_rlabel_position(180 / len(found.layers))  # type: ignore[attr-defined]
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.spines["polar"].set_visible(False)
    axes.spines["inner"].set_color("#dddddd")
    headline(
        figure,
        "Top head of every routed layer",
        f"{_about(found)}. Spokes: layers; rings: heads. Circle: the number of tasks, of {most}, in which the head has"
        " the layer's largest gate; orange: consensus, more than half of them. Grey: one line a task.",
    )
    return figure


def rank_correlation(pid: Floats) -> Floats:
    """Spearman's correlation between rows, ``[tasks, tasks]``; nan for a row whose values are all alike."""
    ranks = rankdata(pid, axis=1)
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    norm = np.sqrt((centred**2).sum(axis=1))
    with np.errstate(invalid="ignore"):
        found: Floats = np.clip(centred @ centred.T / np.outer(norm, norm), -1.0, 1.0)
    np.fill_diagonal(found, np.where(norm > 0, 1.0, np.nan))
    return found


def pid_correlation(found: Routing) -> Figure:
    """How alike tasks use the principal directions: a heat map whose rows are in the order of a clustering."""
    tasks = len(found.tasks)
    correlation = rank_correlation(found.pid)
    figure = new_figure(1.3 + 0.23 * tasks)
    tree, heat = figure.subplots(2, 1, height_ratios=[0.5, 0.23 * tasks])
    order = [0]
    if tasks > 1:
        distance = 1 - np.nan_to_num((correlation + correlation.T) / 2)
        np.fill_diagonal(distance, 0.0)
        clusters = linkage(squareform(distance, checks=False), "average")
        drawn = dendrogram(clusters, ax=tree, no_labels=True, color_threshold=0, above_threshold_color=GREY)
        order = [int(leaf) for leaf in drawn["leaves"] or ()]
        for branches in tree.collections:
            branches.set_linewidth(0.8)
        tree.set_xlim(0, 10 * tasks)
        tree.set_ylim(bottom=-0.02 * tree.get_ylim()[1])  # or the joints of tasks that are alike would be cut
    tree.axis("off")
    ordered = correlation[np.ix_(order, order)]
    words = ["–" if np.isnan(value) else f"{round(value, 1) + 0.0:.1f}".replace("-", "−") for value in ordered.flat]
    _heat(heat, ordered, words, DIVERGING, -1.0, 1.0)
    names = [found.tasks[place] for place in order]
    heat.set_xticks(np.arange(tasks), names, rotation=45, ha="right", rotation_mode="anchor")
    heat.set_yticks(np.arange(tasks), names)
    headline(
        figure,
        "Do tasks use the same directions?",
        f"{_about(found)}. Spearman's correlation over {found.pid.shape[1]} directions; average linkage on 1 − ρ.",
    )
    return figure


def _heat(axes: Axes, values: Floats, words: list[str], colours: str, low: float, high: float) -> None:
    """Draw a heat map, with the numbers in the cells where they fit."""
    axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if values.shape[1] > NUMBERS_FIT:
        return
    for index, word in enumerate(words):
        row, column = divmod(index, values.shape[1])
        strength = (values[row, column] - low) / (high - low)
        dark = strength > 0.6 if colours == SEQUENTIAL else abs(strength - 0.5) > 0.33
        axes.text(column, row, word, ha="center", va="center", fontsize=6, color="white" if dark else "black")


def _about(found: Routing) -> str:
    return found.about.replace(found.label, display_name(found.label), 1)
