"""`TextEncoder`: texts in, one vector per text out.

    texts -> chunks -> token ids -> batches of similar length -> packed encoder -> pooling -> (N, W)

Everything around the encoder (pooling, dense layers, normalisation, prompts, longest text) is what
the model folder says (`recipe.py`); the arguments of `encode` override it.
"""

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from encoder_fast.batch import Batch
from encoder_fast.chunks import chunks, token_batches
from encoder_fast.hardware import usable_device
from encoder_fast.plan import Plan, Pooling, make_plan
from encoder_fast.progress import Progress
from encoder_fast.readout import read_out, similarity
from encoder_fast.recipe import read_recipe
from encoder_fast.settings import BATCH_TOKENS
from encoder_fast.tokens import Tokenizer, Tokens, check_texts
from encoder_fast.weights import load, resolve_folder

Texts = str | Iterable[str | tuple[str, str]]


class TextEncoder:
    """A model folder (or hub id) as a function from text to vectors.

    path         a sentence-transformers folder, or a plain transformers folder (mean pooling)
    dtype        torch dtype of the encoder; None keeps the checkpoint's own
    device       None is the CPU
    backend      "auto", or the one backend that must run every op
    max_length   longest text in tokens; None takes the folder's limit
    precision    "int8" computes the linear layers in int8, on a CPU; None in `dtype`

    Attributes: `model`, `tokenizer`, `recipe`, `prompts`. Errors: those of `encoder_fast.load`, and
    ConfigError for a folder whose modules or tokenizer are not understood.
    """

    def __init__(
        self,
        path: str | Path,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        backend: str = "auto",
        max_length: int | None = None,
        precision: str | None = None,
    ):
        self.recipe = read_recipe(resolve_folder(path))
        folder = self.recipe.encoder_folder
        device = None if device is None else usable_device(device)
        options = {"dtype": dtype, "device": device, "backend": backend, "precision": precision}
        self.model = load(folder, **options)
        self.recipe.after.to(self.model.device)
        self.tokenizer = Tokenizer(
            folder,
            max_length=self.recipe.max_length if max_length is None else max_length,
            table_length=self.model.config.max_length,
            lower_case=self.recipe.lower_case,
        )
        self.prompts = self.recipe.prompts

    @property
    def max_length(self) -> int | None:
        """Longest text in tokens, special ones included; longer texts are cut, with a warning."""
        return self.tokenizer.max_length

    @max_length.setter
    def max_length(self, value: int | None) -> None:
        self.tokenizer.max_length = value

    @property
    def dimension(self) -> int:
        """Width of the vectors that `encode` gives without arguments."""
        return self.width()

    def width(self, pooling: Pooling = None, truncate_dim: int | None = None) -> int:
        """Width of the vectors that `encode` gives with these arguments."""
        return self._plan(pooling=pooling, truncate_dim=truncate_dim).width

    def encode(
        self,
        texts: Texts,
        pooling: Pooling = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
        convert_to_tensor: bool = False,
    ) -> np.ndarray | Tensor:
        """Vectors of texts, in their order.

        texts              N strings or (string, string) pairs; or one string. A tuple is a list:
                           a pair by itself is two texts, [pair] is one
        pooling            "cls", "mean", "max", "weighted", "last", "mean_sqrt_len", or several
                           names, whose vectors are concatenated; None takes the folder's
        normalize          scale to length 1; None does what the folder says
        truncate_dim       keep the first numbers of each vector (Matryoshka), before normalising
        batch_tokens       tokens in one forward pass; a longer text has a pass of its own
        prompt             put before each text; or `prompt_name`, a key of `prompts`
        progress           True, False, or None: a bar on a terminal when the work is long
        convert_to_tensor  a torch tensor on the model's device, instead of numpy on the host

        Returns (N, W) float32, or (W,) for one string. Texts beyond `max_length` tokens are cut,
        with one warning that says how many. TypeError names the index of an item that is no text;
        ValueError names an argument out of range.
        """
        items, single = _as_list(texts)
        plan = self._plan(
            pooling=pooling,
            normalize=normalize,
            truncate_dim=truncate_dim,
            batch_tokens=batch_tokens,
            prompt=prompt,
            prompt_name=prompt_name,
        )
        # Allocated outside inference mode, so that the caller may use the result in training.
        device = self.model.device if convert_to_tensor else "cpu"
        y_NW = torch.empty(len(items), plan.width, dtype=torch.float32, device=device)
        cut = []
        with Progress(len(items), "embedding", progress) as bar:
            for start, rows_CW, _ in self._run(items, plan, bar, cut):
                y_NW[start : start + len(rows_CW)] = rows_CW
        self._warn(cut, len(items))
        y_NW = y_NW if convert_to_tensor else y_NW.numpy()
        return y_NW[0] if single else y_NW

    def encode_query(
        self, texts: Texts, prompt: str | None = None, prompt_name: str | None = None, **options
    ) -> np.ndarray | Tensor:
        """`encode` with the prompt named "query", unless another is given."""
        name = "query" if prompt is None and prompt_name is None else prompt_name
        return self.encode(texts, prompt=prompt, prompt_name=name, **options)

    def encode_document(
        self, texts: Texts, prompt: str | None = None, prompt_name: str | None = None, **options
    ) -> np.ndarray | Tensor:
        """`encode` with the prompt named "document", unless another is given."""
        name = "document" if prompt is None and prompt_name is None else prompt_name
        return self.encode(texts, prompt=prompt, prompt_name=name, **options)

    def stream(
        self, texts: Texts, progress: bool | None = None, **options
    ) -> Iterator[tuple[np.ndarray, int]]:
        """As `encode`, chunk by chunk, for results that do not fit in memory.

        Yields (rows (C, W) float32 numpy, number of token ids) in the order of the texts. `options`
        are those of `encode`, and are checked at once, not when the first chunk is asked for.
        """
        items, _ = _as_list(texts)
        return self._chunks(items, self._plan(**options), progress)

    def _chunks(
        self, items: list, plan: Plan, progress: bool | None
    ) -> Iterator[tuple[np.ndarray, int]]:
        cut = []
        with Progress(len(items), "embedding", progress) as bar:
            for _, rows_CW, tokens in self._run(items, plan, bar, cut):
                yield rows_CW.cpu().numpy(), tokens
        self._warn(cut, len(items))

    @torch.inference_mode()
    def encode_tokens(self, tokens: Tokens, batch_tokens: int = BATCH_TOKENS) -> Tensor:
        """`Tokens` of N texts -> (N, W) float32 tensor on the model's device, the folder's way."""
        if not isinstance(tokens, Tokens):
            raise TypeError(f"tokens must be Tokens, got {type(tokens).__name__}")
        plan = self._plan(batch_tokens=batch_tokens)
        return self._encode_tokens(tokens, plan, Progress(len(tokens), "embedding", False))

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> np.ndarray | Tensor:
        """(N, W) and (M, W), or single (W,) vectors -> (N, M) scores; a larger score is closer.

        The measure is the folder's: cosine, dot, or the negative euclidean or manhattan distance.
        numpy in, numpy out; a tensor among the two gives a tensor.
        """
        a_NW, b_MW = (torch.atleast_2d(torch.as_tensor(x).float()) for x in (a, b))
        if a_NW.ndim != 2 or b_MW.ndim != 2 or a_NW.shape[1] != b_MW.shape[1]:
            shapes = f"{tuple(a_NW.shape)} and {tuple(b_MW.shape)}"
            raise ValueError(f"a and b have shapes {shapes}; (N, W) and (M, W) needed")
        scores_NM = similarity(self.recipe.similarity, a_NW, b_MW)
        keep = isinstance(a, Tensor) or isinstance(b, Tensor)
        return scores_NM if keep else scores_NM.numpy()

    def __repr__(self) -> str:
        return (
            f"TextEncoder({self.model.config.architecture}, dimension={self.dimension}, "
            f"pooling={'+'.join(self.recipe.pooling)}, max_length={self.max_length}, "
            f"dtype={self.model.dtype}, device={self.model.device})"
        )

    def _plan(self, **options) -> Plan:
        hidden_size = self.model.config.hidden_size
        return make_plan(self.recipe, hidden_size, self.tokenizer.prompt_length, **options)

    @torch.inference_mode()
    def _run(self, items: list, plan: Plan, bar: Progress, cut: list[int]) -> Iterator[tuple]:
        """Yields (start, rows (C, W) float32 on the model's device, tokens) for each chunk; indices
        of cut texts go to `cut`."""
        training = self.model.training
        self.model.eval()
        try:
            for start, chunk in chunks(items):
                tokens = self.tokenizer(_with_prompt(chunk, plan.prompt), first_index=start)
                cut += [start + index for index in tokens.truncated]
                yield start, self._encode_tokens(tokens, plan, bar), sum(map(len, tokens.ids))
        finally:
            self.model.train(training)

    def _encode_tokens(self, tokens: Tokens, plan: Plan, bar: Progress) -> Tensor:
        device = self.model.device
        y_CW = torch.empty(len(tokens), plan.width, dtype=torch.float32, device=device)
        # RoBERTa and ModernBERT have no second token type, whatever their tokenizer gives to pairs.
        typed = tokens.type_ids is not None and self.model.config.type_rows > 1
        for rows in token_batches([len(ids) for ids in tokens.ids], plan.batch_tokens):
            types = [tokens.type_ids[row] for row in rows] if typed else None
            ids = [tokens.ids[row] for row in rows]
            batch = Batch.from_lists(ids, token_type_ids=types, device=device)
            y_CW[torch.tensor(rows, device=device)] = self._vectors(batch, plan)
            bar.advance(len(rows))
        return y_CW

    def _vectors(self, batch: Batch, plan: Plan) -> Tensor:
        """Packed tokens of B texts -> (B, W) float32."""
        x_TW = self.model(batch).last_hidden_state
        pool = self.model.ops.pool
        y_BW = read_out(pool, x_TW, batch.cu_seqlens, plan.pooling, plan.skip_tokens)
        y_BW = self.recipe.after(y_BW)[:, : plan.truncate_dim]
        return torch.nn.functional.normalize(y_BW, dim=-1) if plan.normalize else y_BW

    def _warn(self, cut: list[int], count: int) -> None:
        if cut:
            warnings.warn(
                f"{len(cut)} of {count} texts are longer than {self.max_length} tokens and were "
                f"cut there; the first is texts[{cut[0]}]",
                stacklevel=3,
            )


def _with_prompt(items: list, prompt: str) -> list:
    if not prompt:
        return items
    return [prompt + x if isinstance(x, str) else (prompt + x[0], x[1]) for x in items]


def _as_list(texts: Texts) -> tuple[list, bool]:
    if isinstance(texts, str):
        return [texts], True
    no_list = isinstance(texts, (bytes, dict, set)) or not hasattr(texts, "__iter__")
    # numpy's array of a single text has the method, and raises.
    if no_list or getattr(texts, "ndim", 1) == 0:
        raise TypeError(f"texts must be a string or a list of strings, got {type(texts).__name__}")
    items = list(texts)
    check_texts(items)
    return items, False
