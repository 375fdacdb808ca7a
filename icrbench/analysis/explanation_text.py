"""One input's explanation as text for a terminal."""

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from icrbench.report.tables.iclness import shown
from icrbench.report.text.names import display_name

_LEVELS = "▁▂▃▄▅▆▇█"
_WIDTH = 30
_PROMPT_LINES = 30  # of a prompt with demonstrations, its end


def text(explained: dict[str, Any]) -> str:
    """Write the whole explanation, section after section."""
    parts = [_prompt(explained), _router(explained["router"]), _layers(explained), _options(explained)]
    return "\n\n".join(part for part in [*parts, _top(explained["top"])] if part)


def sparks(values: Sequence[float], most: float) -> str:
    """Draw each value as one character, a bar whose height is in eighths; ``most`` fills the character."""
    return "".join(_LEVELS[min(7, int(8 * abs(value) / most))] if most > 0 else _LEVELS[0] for value in values)


def _prompt(explained: dict[str, Any]) -> str:
    lines = explained["prompt"].split("\n")
    left_out = max(0, len(lines) - _PROMPT_LINES)
    notes = [f"{explained['tokens']} tokens"]
    notes += [f"starts with {explained['starts_with']}"] if explained["starts_with"] else []
    notes += [f"{explained['demonstrations']} demonstrations"] if explained["demonstrations"] else []
    notes += ["the text was cut in front"] if explained["truncated"] else []
    notes += [f"the last {_PROMPT_LINES} of {len(lines)} lines are shown"] if left_out else []
    head = f"{display_name(explained['method'])} on {explained['model']}, task {explained['task']}"
    return "\n".join([head, "", f"Prompt ({', '.join(notes)})", *(f"  | {line}" for line in lines[left_out:])])


def _router(router: dict[str, Any] | None) -> str:
    if router is None:
        return ""
    most = max((abs(value) for row in router["alpha"] for value in row), default=0.0)
    rows = [
        (layer, sparks(alpha, most), " ".join(f"{value:+.2f}" for value in alpha), sparks(gamma, 1.0), _mean(gamma))
        for layer, alpha, gamma in zip(router["layers"], router["alpha"], router["gamma"], strict=True)
    ]
    table = tabulate(rows, ["layer", "|alpha|", "alpha", "gamma", "mean"], disable_numparse=True)
    return f"Router (bars: alpha against its largest, {most:.2f}; gamma against 1)\n{table}"


def _layers(explained: dict[str, Any]) -> str:
    layers = explained["layers"]
    most = max(layer["attention_change"] for layer in layers)
    rows = [
        (
            layer["layer"],
            f"{layer['attention_change']:.3f}",
            "█" * round(_WIDTH * layer["attention_change"] / most) if most > 0 else "",
            f"{layer['state_change']:.3f}",
        )
        for layer in layers
    ]
    table = tabulate(rows, ["layer", "attention", "", "state"], disable_numparse=True)
    return (
        "Change at the last token (attention: total variation, mean over heads; state: relative to its size)\n" + table
    )


def _options(explained: dict[str, Any]) -> str:
    best = {when: max(explained["options"], key=lambda option: option[when])["option"] for when in ("before", "after")}
    rows = [
        (
            shown(option["option"]),
            *(
                f"{100 * option[when]:.1f}{'*' if option['option'] == best[when] else ' '}"
                for when in ("before", "after")
            ),
            *(f"{100 * option[f'{when}_of_all_tokens']:.2f}" for when in ("before", "after")),
        )
        for option in explained["options"]
    ]
    header = ["option", "before", "after", "before, of all tokens", "after, of all tokens"]
    return "Probability of the options, % (*: the prediction)\n" + tabulate(
        rows, header, disable_numparse=True, stralign="right"
    )


def _top(top: dict[str, Any]) -> str:
    rows = [
        (
            shown(before["token"]),
            f"{100 * before['probability']:.1f}",
            shown(after["token"]),
            f"{100 * after['probability']:.1f}",
        )
        for before, after in zip(top["before"], top["after"], strict=True)
    ]
    table = tabulate(rows, ["before", "%", "after", "%"], disable_numparse=True)
    return f"Likeliest next tokens (␣: a space)\n{table}"


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}"
