"""Nine templates of a task: its own, and eight that ask the same in other words.

Four parts of a template take three forms each: an instruction before everything, the word before the input, the word
that asks for the answer, and what separates the lines. The nine are the rows of the orthogonal array L9(3^4), in which
every form of a part meets every form of every other part once, as StaICC (Cho and Inoue 2025) varies templates. The
words are ours. The options, and what stands between demonstrations, stay as they are.
"""

import re
from dataclasses import replace

from icrbench.data.task import Task

L9 = (
    (0, 0, 0, 0),
    (0, 1, 1, 1),
    (0, 2, 2, 2),
    (1, 0, 1, 2),
    (1, 1, 2, 0),
    (1, 2, 0, 1),
    (2, 0, 2, 1),
    (2, 1, 0, 2),
    (2, 2, 1, 0),
)
"""Form of instruction, input word, answer word and separator in each template; 0 is the task's own."""

INSTRUCTIONS = ("", "Read the input and give the answer.", "Below is one item of a test. Reply with the right answer.")
INPUT_WORDS = ("Input:", "Text:", "Item:")
ANSWER_WORDS = ("Answer:", "Label:", "Output:")
SEPARATORS = ("\n", " ", " || ")


def templates(task: Task) -> tuple[Task, ...]:
    """Return the task under each of its nine templates, its own first."""
    body, cue = _parts(task.template.rstrip())
    own = re.match(r"[^{}\n]*:(?= *\{)", body)
    input_word, rest = (own[0], body[own.end() :].lstrip(" ")) if own else ("", body)
    input_words = (input_word, *_others(INPUT_WORDS, input_word))
    answer_words = (cue, *_others(ANSWER_WORDS, cue))
    found = [task]
    for instruction, word, answer, separator in L9[1:]:
        lines = [INSTRUCTIONS[instruction], f"{input_words[word]} {rest}".lstrip(" "), answer_words[answer]]
        text = "\n".join(line for line in lines if line)
        found.append(replace(task, template=text.replace("\n", SEPARATORS[separator])))
    return tuple(found)


def _parts(template: str) -> tuple[str, str]:
    """Split a template before its answer cue: its last line, or in one line what follows the last field."""
    body, line, cue = template.rpartition("\n")
    if line and body:
        return body, cue
    end = template.rfind("}") + 1
    return template[:end], template[end:].strip()


def _others(words: tuple[str, ...], own: str) -> tuple[str, ...]:
    """Two words that are not the task's own."""
    return tuple(word for word in words if word != own)[:2]
