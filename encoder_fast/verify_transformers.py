"""The padded batch through transformers' own model, for `verify`. Only here is it imported."""

import contextlib
import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from encoder_fast.verify_cases import Texts


def missing() -> str | None:
    """Why there is no comparison, or None."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: no comparison with its own model"
    return None


@contextlib.contextmanager
def _quiet():
    """No progress bars and no reports of unused weights, until the end of the block."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class Comparison:
    """One padded batch, run in each dtype once."""

    def __init__(self, folder: Path, texts: Texts, device: torch.device):
        self.folder, self.device = folder, device
        self.case = texts.padded(texts.few())
        self.known: dict[torch.dtype, list[Tensor]] = {}

    def hidden_states(self, dtype: torch.dtype) -> list[Tensor]:
        """Last hidden state of each text, `(L, W)`, fp64 on the CPU."""
        if dtype not in self.known:
            self.known[dtype] = self._run(dtype)
        return self.known[dtype]

    def _run(self, dtype: torch.dtype) -> list[Tensor]:
        from transformers import AutoModel

        options = {"dtype": dtype, "attn_implementation": "eager", "local_files_only": True}
        with _quiet(), torch.no_grad():
            model = AutoModel.from_pretrained(self.folder, **options).to(self.device).eval()
            return self._call(model, alone=dtype == torch.float64)

    def _call(self, model, alone: bool) -> list[Tensor]:
        """The padded batch in one call; or, as an oracle should, each text by itself: transformers'
        eager ModernBERT in fp64 gives NaN for padded rows.
        """
        ids = torch.tensor(self.case.rows, dtype=torch.int64, device=self.device)
        mask = torch.tensor(self.case.masks, dtype=torch.int64, device=self.device)
        if alone:
            texts = [row[real == 1][None] for row, real in zip(ids, mask, strict=True)]
            rows = [model(input_ids=text).last_hidden_state[0] for text in texts]
        else:
            padded = model(input_ids=ids, attention_mask=mask).last_hidden_state
            rows = [row[real == 1] for row, real in zip(padded, mask, strict=True)]
        return [row.cpu().double() for row in rows]
