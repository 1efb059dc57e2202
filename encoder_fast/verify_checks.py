"""The checks of `verify`: what is run, what it is compared with, and the law that decides.

    max |x - oracle| <= 3 max |plain - oracle| + 4 ulps of the dtype at the oracle's scale

and so the root mean square. The oracle is the `reference` backend in fp64 with each text alone;
plain is the same in the dtype of `x`. Checks of isolation and repeatability compare bits.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from encoder_fast.batch import Batch
from encoder_fast.model import Model
from encoder_fast.verify_cases import Case, Text, Texts

FACTOR, ULPS = 3.0, 4.0


@dataclass(frozen=True)
class Result:
    """One line of the table. A non-finite error is a failure."""

    check: str
    backend: str
    dtype: str
    error: float
    allowed: float
    where: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed

    @property
    def badness(self) -> float:
        """Error in units of what is allowed; infinite if nothing is, or if the error is NaN."""
        if self.ok:
            return self.error / self.allowed if self.allowed else 0.0
        return math.inf if math.isnan(self.error) or not self.allowed else self.error / self.allowed


class Alone:
    """Hidden states of texts, each run by itself, remembered.

    Positions and columns come with the text, so no rule of `Batch` decides them.
    """

    def __init__(self, model: Model):
        self.model = model
        self.known: dict[Text, Tensor] = {}
        self.known_gradients: dict[tuple[Text, ...], dict[str, Tensor]] = {}

    def __call__(self, text: Text) -> Tensor:
        """`(L, W)` in fp64 on the CPU."""
        if text not in self.known:
            with torch.no_grad():
                x_TW = self.model(alone_batch(text, self.model.device)).last_hidden_state
            self.known[text] = x_TW.cpu().double()
        return self.known[text]

    def gradients(self, texts: tuple[Text, ...]) -> dict[str, Tensor]:
        """Parameter name -> gradient of the loss over all texts, fp64 on the CPU."""
        if texts not in self.known_gradients:
            batches = [alone_batch(text, self.model.device) for text in texts]
            self.known_gradients[texts] = gradients(self.model, batches)
        return self.known_gradients[texts]


def alone_batch(text: Text, device: torch.device) -> Batch:
    """A batch of one text with explicit columns and positions."""

    def row(values: tuple | None) -> Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.int64, device=device)

    ends = torch.tensor([0, len(text.ids)], dtype=torch.int32)
    batch = Batch.from_packed(row(text.ids), ends, row(text.types), row(text.positions))
    span = text.columns[-1] - text.columns[0] + 1 if text.columns else 0
    return replace(batch, columns_T=row(text.columns), spans=(span,))


def judge(mine: Tensor, plain: Tensor, oracle: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Error and what is allowed, as largest or root mean square: the one nearer to its limit."""
    if not mine.numel():
        return 0.0, 0.0
    if mine.shape != oracle.shape:
        return math.nan, 0.0
    mine, plain, oracle = (x.detach().cpu().double() for x in (mine, plain, oracle))
    floor, pairs = ULPS * torch.finfo(dtype).eps, []
    for size in (lambda x: x.abs().max().item(), lambda x: x.square().mean().sqrt().item()):
        allowed = FACTOR * size(plain - oracle) + floor * size(oracle)
        pairs.append((size(mine - oracle), allowed))
    return max(pairs, key=lambda p: Result("", "", "", *p).badness)


class Checks:
    """All checks of one backend in one dtype.

    Args:
        model: the candidate.
        backend: its name.
        texts: what to run.
        oracle, plain: alone runs of the reference, in fp64 and in the candidate's dtype.
    """

    def __init__(self, model: Model, backend: str, texts: Texts, oracle: Alone, plain: Alone):
        self.model, self.backend, self.texts = model, backend, texts
        self.oracle, self.plain = oracle, plain
        self.dtype = str(model.dtype).removeprefix("torch.")

    def all(self) -> list[tuple[str, Callable[[], Result]]]:
        """Names and checks, in the order of the table."""
        t = self.texts
        lengths, few = t.lengths(), t.few()
        cases = {
            "padding right": lambda: t.padded(few),
            "padding left": lambda: t.padded(few, left=True),
            "holes": t.holes,
            "packed": lambda: t.packed(lengths),
            "positions": t.positioned,
            "token types": t.typed,
            "empty rows": lambda: t.with_empty_rows(packed=False),
            "empty sequences": lambda: t.with_empty_rows(packed=True),
            "nan in padding": lambda: replace(t.padded(few), as_embeddings=True),
        }
        if t.config.type_rows < 2:
            del cases["token types"]
        checks = [("lengths alone", lambda: self.lengths_alone(lengths))]
        for name, build in cases.items():
            checks.append((name, lambda name=name, build=build: self.case(name, build())))
        return [
            *checks,
            ("hole contents", self.hole_contents),
            ("isolation", self.isolation),
            ("same bits twice", self.repeat),
            ("empty batch", self.empty_batch),
            ("gradient", self.gradient),
        ]

    def result(self, check: str, error: float, allowed: float, where: str = "") -> Result:
        return Result(check, self.backend, self.dtype, error, allowed, where)

    def run(self, case: Case) -> list[Tensor]:
        with torch.no_grad():
            return case.run(self.model)

    def compare(self, check: str, case: Case) -> Iterator[Result]:
        """One result for each text of a case."""
        for mine, text in zip(self.run(case), case.texts(self.texts.config), strict=True):
            numbers = judge(mine, self.plain(text), self.oracle(text), self.model.dtype)
            yield self.result(check, *numbers, f"text of {len(text.ids)} tokens")

    def case(self, check: str, case: Case) -> Result:
        """The worst text of a case."""
        return max(self.compare(check, case), key=lambda r: r.badness)

    def lengths_alone(self, lengths: list[int]) -> Result:
        """Each length in a call of its own."""
        results = []
        for length in lengths:
            results += self.compare("lengths alone", self.texts.packed([length]))
        return max(results, key=lambda r: r.badness)

    def same_bits(self, check: str, ours: list[Tensor], theirs: list[Tensor]) -> Result:
        pairs = zip(ours, theirs, strict=True)
        # torch's maximum keeps a NaN; Python's may drop it.
        error = torch.stack([(a.double() - b.double()).abs().max() for a, b in pairs]).max().item()
        return self.result(check, error, 0.0, "bits")

    def hole_contents(self) -> Result:
        """What lies in masked slots changes nothing."""
        case = self.texts.holes()
        other = self.texts.other_hole_contents(case)
        return self.same_bits("hole contents", self.run(case), self.run(other))

    def isolation(self) -> Result:
        """Another neighbour of the same length changes nothing."""
        longest = self.texts.longest
        case = self.texts.packed([max(longest // n, 1) for n in (2, 3, 1, 4)])
        other = self.texts.other_neighbour(case)
        return self.same_bits("isolation", self.run(case)[1:], self.run(other)[1:])

    def repeat(self) -> Result:
        case = self.texts.packed(self.texts.lengths())
        return self.same_bits("same bits twice", self.run(case), self.run(case))

    def empty_batch(self) -> Result:
        """No sequence at all, and only empty ones, pooled: no rows, and zeros."""
        with torch.no_grad():
            none = self.model.pool(Batch.from_lists([], device=self.model.device))
            zeros = self.model.pool(Batch.from_lists([[], []], device=self.model.device))
        W = self.texts.config.hidden_size
        right = none.shape == (0, W) and zeros.shape == (2, W)
        error = zeros.double().abs().sum().item() if right else math.nan
        return self.result("empty batch", error, 0.0)

    def gradient(self) -> Result:
        """Every parameter's gradient of one loss, packed, against fp64 with each text alone.

        Errors are relative to the norm of a parameter's gradient. Parameters share what is allowed:
        the plain error of a single one may be small by luck. One with (almost) no gradient, like an
        unused type, is noise at the scale of the others.
        """
        case = self.texts.packed(sorted({max(self.texts.longest // n, 1) for n in (2, 3)}))
        texts = tuple(case.texts(self.texts.config))
        packed = Batch.from_lists([list(text.ids) for text in texts], device=self.model.device)
        mine = gradients(self.model, [packed])
        plain, oracle = self.plain.gradients(texts), self.oracle.gradients(texts)
        smallest = max(exact.norm().item() for exact in oracle.values()) / 100

        def errors(grads: dict[str, Tensor]) -> dict[str, float]:
            return {
                name: ((grads[name] - exact).norm() / exact.norm().clamp(min=smallest)).item()
                for name, exact in oracle.items()
            }

        ours = errors(mine)
        worst = max(ours, key=lambda name: math.inf if math.isnan(ours[name]) else ours[name])
        floor = ULPS * torch.finfo(self.model.dtype).eps
        allowed = FACTOR * max(errors(plain).values()) + floor
        return self.result("gradient", ours[worst], allowed, worst)


def gradients(model: Model, batches: list[Batch]) -> dict[str, Tensor]:
    """Gradients, fp64 on the CPU, of a weighted sum of all outputs over several calls."""
    named = {n: p for n, p in model.encoder.named_parameters() if not n.startswith("pooler")}
    start, W = 0, model.config.hidden_size
    sums = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in named.items()}
    T = sum(batch.T for batch in batches)
    for batch in batches:
        x_TW = model(batch).last_hidden_state
        at = torch.arange(start * W, (start + batch.T) * W, dtype=torch.float64)
        weight_TW = (torch.cos(at * 0.7) / T).view(x_TW.shape).to(x_TW.device)
        loss = (x_TW.double() * weight_TW).sum()
        grads = torch.autograd.grad(loss, list(named.values()))
        for name, grad in zip(named, grads, strict=True):
            sums[name] += grad.cpu()
        start += batch.T
    return sums
