"""Training a method's parameters so that a zero-shot prompt ends as it would after demonstrations.

The teacher is the frozen model, given demonstrations and a query; the student is the same model under the method, given
the query alone. Labels are scored by their first token, so both are compared where that token is predicted: at the
prompt's last token. The published losses run over the answer's whole span, with the answer appended to the prompt (and
some of them over the query, too); on one-token answers whose prediction is counted in, they are the losses here.

Training runs a method through `Fitted.intervene`, as scoring does, so what is trained is what is applied. The teacher
runs as the student does, a minibatch at a time, and shows new demonstrations every time: what is kept of it is that of
one minibatch, however many queries and demonstrations there are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar, overload

import torch
from torch import Tensor
from torch.nn import functional

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.prefix import prompt_batches
from icrbench.backbone.sites import Site, captured
from icrbench.method import FitData, Fitted, Method, Scope
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import (
    Episode,
    Episodes,
    Labelled,
    Question,
    Questions,
    demonstration_tokens,
    minibatches,
)
from icrbench.toolkit.optimisation import Decay, Schedule, epoch_means, optimise
from icrbench.toolkit.selection import question_batch
from icrbench.util.bounds import Count, NotNegative, Positive, Share

SORTED_BATCHES = 4  # minibatches drawn together and cut by length: padding costs as much as prompts do
COST_OF_TRAINING = 3  # forward and backward, in forward passes

F = TypeVar("F", bound=Fitted)


@dataclass(frozen=True)
class Lesson:
    """A query to learn on.

    Attributes:
        question: its zero-shot prompt.
        taught: ``[d]``, the teacher's final hidden state where the answer is predicted; empty without a teacher.
        vectors: by site, the teacher's vectors ``[n, d]`` at the query's last ``n`` tokens: those that it has in common
            with the zero-shot prompt, without that prompt's first. (Tokens at the query's start can differ, since a
            tokenizer may read it otherwise behind a demonstration. The first token of any text, whether a
            beginning-of-sequence token or a word, draws attention as no other does; its vectors can be hundreds of
            times as long as the others', and behind demonstrations it is no longer the first.)
    """

    question: Question
    taught: Tensor = field(default_factory=lambda: torch.empty(0))
    vectors: Mapping[Site, Tensor] = field(default_factory=dict)


def taught(
    backbone: Backbone, episodes: Sequence[Episode], sites: Sequence[Site] = (), most: int | None = None
) -> list[Lesson]:
    """Read what the frozen model makes of each query after its demonstrations, one lesson an episode.

    A final hidden state stands for the logits over the whole vocabulary, which would take a hundred times the memory.
    No lesson keeps anything of the demonstrations alive.

    Args:
        backbone: the model, with nothing applied to it.
        episodes: queries with their demonstrations.
        sites: whose vectors a lesson is to hold.
        most: how many of the query's last tokens they are wanted of; all that it has in common with the zero-shot
            prompt if not given.
    """
    questions = Questions(backbone)
    alone = questions.zero_shot(episode.query for episode in episodes)
    shown = [question.prompt.tokens for question in questions.in_context(episodes)]
    common = [
        min(_common_end(one.prompt.tokens, other), len(one.prompt.tokens) - 1)
        for one, other in zip(alone, shown, strict=True)
    ]
    if most is not None:
        common = [min(most, count) for count in common]
    found: dict[int, Lesson] = {}
    with torch.no_grad():
        texts = [question.prompt.text for question in alone]
        own = max(common) if sites else 1  # tokens whose vectors are wanted must not be in a shared prefix
        for rows, batch, cache in prompt_batches(backbone, shown, texts, own):
            start = min(int(batch.last[place]) + 1 - common[row] for place, row in enumerate(rows))
            with captured(backbone, sites, start) as seen:
                final = batch.at_last(backbone.hidden_states(batch, cache))
            for place, row in enumerate(rows):
                end = int(batch.last[place]) + 1 - start
                span = slice(end - common[row], end)
                # Copies: a slice would keep the whole batch.
                vectors = {site: seen[site][place, span].clone() for site in sites}
                found[row] = Lesson(alone[row], final[place].clone(), vectors)
    return [found[row] for row in range(len(episodes))]


def _common_end(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their ends."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((count for count, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def answer_loss(logits: Tensor, questions: Sequence[Question]) -> Tensor:
    """Cross-entropy of the answers' first tokens, over the whole vocabulary: ``[B, V]`` to the mean over the rows."""
    return functional.cross_entropy(logits, torch.tensor([one.answer for one in questions], device=logits.device))


@dataclass(frozen=True)
class Attempt:
    """The student's forward pass of a minibatch.

    Attributes:
        backbone: the model.
        lessons: what it was to learn.
        batch: its prompts.
        logits: ``[B, V]`` at each prompt's last token.
        vectors: by site, ``[B, T, d]``, with the method applied.
    """

    backbone: Backbone
    lessons: Sequence[Lesson]
    batch: Batch
    logits: Tensor
    vectors: Mapping[Site, Tensor]

    def cross_entropy(self) -> Tensor:
        """Of the answers' first tokens, over the whole vocabulary; mean over the minibatch."""
        return answer_loss(self.logits, [lesson.question for lesson in self.lessons])

    def divergence(self) -> Tensor:
        """``KL(teacher || student)`` of the next token over the whole vocabulary, in nats; mean over the minibatch."""
        with torch.no_grad():
            states = torch.stack([lesson.taught for lesson in self.lessons]).to(self.logits.device)
            teacher = self.backbone.logits(states).log_softmax(-1).to(self.logits.device)
        student = self.logits.log_softmax(-1)
        return functional.kl_div(student, teacher, reduction="batchmean", log_target=True)

    def distance(self) -> Tensor:
        """Squared difference from the teacher's vectors: of a query the mean over its tokens, sites and ``d``.

        The mean of it over the minibatch, in which a long query counts as much as a short one.
        """
        spans = [len(next(iter(lesson.vectors.values()))) for lesson in self.lessons]
        rows = torch.cat([torch.full((count,), row) for row, count in enumerate(spans)])
        ends = self.batch.last.tolist()
        columns = torch.cat([torch.arange(end + 1 - count, end + 1) for end, count in zip(ends, spans, strict=True)])
        shares = torch.cat([torch.full((count,), 1 / (count * len(spans))) for count in spans])
        parts = []
        for site, vectors in self.vectors.items():
            wanted = torch.cat([lesson.vectors[site] for lesson in self.lessons]).to(vectors.device)
            own = vectors[rows.to(vectors.device), columns.to(vectors.device)]
            squares = (own.float() - wanted.float()).square().mean(-1)
            parts.append((shares.to(squares.device) * squares).sum().to(self.logits.device))
        return torch.stack(parts).mean()


class Lessons(Sequence[Lesson]):
    """Queries to learn on, each taught when its minibatch is due; until then a lesson is its question alone.

    Args:
        backbone: the model.
        episodes: where demonstrations come from.
        queries: what is asked.
        queries_per_set: queries of a minibatch that share one draw of demonstrations.
        sites: where the teacher's vectors are wanted.
    """

    def __init__(
        self,
        backbone: Backbone,
        episodes: Episodes,
        queries: Sequence[Labelled],
        queries_per_set: int = 1,
        sites: Sequence[Site] = (),
    ) -> None:
        self._backbone, self._episodes, self._queries = backbone, episodes, queries
        self._queries_per_set, self._sites = queries_per_set, sites
        self._asked = [Lesson(question) for question in Questions(backbone).zero_shot(queries)]

    def __len__(self) -> int:
        return len(self._asked)

    @overload
    def __getitem__(self, row: int) -> Lesson: ...

    @overload
    def __getitem__(self, row: slice) -> list[Lesson]: ...

    def __getitem__(self, row: int | slice) -> Lesson | list[Lesson]:
        return self._asked[row]

    def taught(self, rows: Sequence[int], step: int) -> list[Lesson]:
        """Return a minibatch, after demonstrations drawn for this step."""
        drawn: list[Episode] = []
        for start in range(0, len(rows), self._queries_per_set):
            group = [self._queries[row] for row in rows[start : start + self._queries_per_set]]
            hidden = {query.example.content_hash for query in group}
            shown = self._episodes.demonstrations("step", str(step), str(start), exclude=hidden)
            drawn += [Episode(shown, query) for query in group]
        return taught(self._backbone, drawn, self._sites)


@dataclass(frozen=True)
class Trained(Method):
    """A method whose parameters are trained by gradient on zero-shot prompts.

    Attributes:
        learning_rate: of AdamW.
        weight_decay: of AdamW, alike for all parameters.
        batch_size: queries a step.
        epochs: passes over the queries.
        most_steps: steps after which training ends whatever ``epochs`` say; none for no limit.
        warmup: share of the steps in which the learning rate rises.
        clip: largest norm of the gradient.
        decay: the learning rate after the warm-up: along half a cosine or a line to zero, or constant.
    """

    learning_rate: NotNegative = 0.001
    weight_decay: NotNegative = 0.001
    batch_size: Count = 8
    epochs: Count = 10
    most_steps: Count | None = None
    warmup: Share = 0.1
    clip: Positive = 1.0
    decay: Decay = "cosine"

    scope: ClassVar[Scope] = Scope.TASK
    trained: ClassVar[bool] = True
    budget: ClassVar[tuple[str, ...]] = ("batch_size", "epochs", "most_steps")

    def train(
        self,
        backbone: Backbone,
        fitted: F,
        rates: Mapping[str, float],
        lessons: Sequence[Lesson],
        objective: Callable[[Attempt], Tensor],
        rng: Randomness,
        sites: Sequence[Site] = (),
    ) -> F:
        """Train some tensors of a fitted method.

        Args:
            backbone: the model.
            fitted: the method with its initial values; not changed.
            rates: learning rate by the name of the tensor.
            lessons: queries to learn on; `Lessons` are taught as their minibatches come.
            objective: the loss of an attempt.
            rng: the fit's randomness.
            sites: where to hold the student's vectors for the objective.

        Returns:
            The trained method, with the mean loss of each epoch in ``config["loss"]``.
        """
        # The model may be on another device, and the values passed in stay as they are.
        tensors = {name: tensor.to(backbone.device, copy=True) for name, tensor in fitted.tensors.items()}
        student = type(fitted)(fitted.config, tensors)
        per_epoch = -(-len(lessons) // self.batch_size)
        schedule = self.schedule(per_epoch)

        def loss(own: list[Lesson]) -> Tensor:
            return objective(attempt(backbone, student, own, sites))

        groups = [([tensors[name]], rate) for name, rate in rates.items()]
        history = optimise(groups, loss, self._minibatches(lessons, rng), schedule, f"training {self.name}")
        config = {**fitted.config, "loss": epoch_means(history, per_epoch)}
        return type(fitted)(config, {name: tensor.cpu() for name, tensor in tensors.items()})

    def schedule(self, per_epoch: int) -> Schedule:
        """Return the whole training's, of which an epoch has so many steps."""
        steps = per_epoch * self.epochs
        steps = steps if self.most_steps is None else min(steps, self.most_steps)
        return Schedule(steps, self.warmup, self.weight_decay, self.clip, self.decay)

    def _minibatches(self, lessons: Sequence[Lesson], rng: Randomness) -> Iterator[list[Lesson]]:
        for step, rows in enumerate(self._rows(lessons, rng)):
            yield lessons.taught(rows, step) if isinstance(lessons, Lessons) else [lessons[row] for row in rows]

    def _rows(self, lessons: Sequence[Lesson], rng: Randomness) -> Iterator[list[int]]:
        """Row numbers of minibatches, without end."""
        order = rng.python("training-order")
        for rows in minibatches(len(lessons), SORTED_BATCHES * self.batch_size, order):
            rows.sort(key=lambda row: len(lessons[row].question.prompt.tokens))
            batches = [rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size)]
            order.shuffle(batches)
            yield from batches

    def asked(self, count: float) -> float:
        """Return queries asked over all steps, of which there are ``count`` an epoch."""
        whole = self.epochs * count
        return whole if self.most_steps is None else min(whole, self.most_steps * self.batch_size)


def attempt(backbone: Backbone, student: Fitted, lessons: Sequence[Lesson], sites: Sequence[Site] = ()) -> Attempt:
    """Run a minibatch of zero-shot prompts under a method."""
    batch = question_batch(backbone, [lesson.question for lesson in lessons])
    # Hooks run in the order in which they are set, so what is captured has the method's edits in it.
    with student.applied(backbone, batch), captured(backbone, sites) as seen:
        states = batch.at_last(backbone.hidden_states(batch))
    return Attempt(backbone, lessons, batch, student.logits(backbone, states), dict(seen))


@dataclass(frozen=True)
class TrainedOnQueries(Trained):
    """A method trained on many train rows.

    Attributes:
        queries: train rows asked.
    """

    queries: Count = 1000

    budget: ClassVar[tuple[str, ...]] = (*Trained.budget, "queries")

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the queries, forward and backward, in every epoch."""
        return COST_OF_TRAINING * self.asked(self.queries) * sum(tokens.values()) / len(tokens)


@dataclass(frozen=True)
class TrainedOnDemonstrations(Trained):
    """A method trained on no more rows than a few-shot prompt shows, by the answers alone.

    Attributes:
        per_class: rows per class.
        per_task: rows per in-domain task, for tasks without rows of their own.
    """

    per_class: Count = 5
    per_task: Count = 3

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the rows, forward and backward, in every epoch."""
        length = sum(tokens.values()) / len(tokens)
        rows = demonstration_tokens(self.per_class, self.per_task, tokens, classes) / length
        return COST_OF_TRAINING * self.asked(rows) * length


@dataclass(frozen=True)
class Distilled(TrainedOnQueries):
    """A method trained to imitate the model with demonstrations.

    Attributes:
        per_class: demonstrations per class before a teacher's query.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        queries_per_set: queries of a minibatch that share one draw of demonstrations; 1 is the published, more is
            cheaper. Demonstrations are drawn anew for every step.
        w_answer: weight of the cross-entropy of the right answer, beside the imitation.
    """

    per_class: Count = 5
    per_task: Count = 3
    queries_per_set: Count = 1
    w_answer: NotNegative = 0.5

    def lessons(self, backbone: Backbone, data: FitData, rng: Randomness, sites: Sequence[Site] = ()) -> Lessons:
        """Draw queries; the teacher sees them, after demonstrations, as their minibatches come."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task)
        return Lessons(backbone, episodes, episodes.queries(self.queries), self.queries_per_set, sites)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the teacher's prompts and the student's."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        together = min(self.queries_per_set, self.batch_size)
        teacher = self.asked(self.queries) * (sum(tokens.values()) / len(tokens) + shown / together)
        return teacher + super().fit_tokens(tokens, classes)
