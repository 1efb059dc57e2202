"""Text -> token ids, with the `tokenizers` library alone.

The truncation and padding that a `tokenizer.json` may carry were somebody's training settings; they
never apply here. Padding is off (texts are packed, not padded) and truncation is ours: to the
longest text the folder and the position table allow, with the number of truncated texts reported.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from encoder_fast.errors import ConfigError
from encoder_fast.recipe import read_json

# transformers writes int(1e30) as "no limit known"; a real limit is far below this.
_NO_LIMIT = 10**9


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Token ids of N texts.

    ids          list of N lists of ints, special tokens included
    type_ids     the same shape, or None where every type is 0
    truncated    indices of the texts that were longer than the limit
    """

    ids: list[list[int]]
    type_ids: list[list[int]] | None
    truncated: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """The tokenizer of a model folder.

    `max_length` (tokens, special ones included; None for no limit): the argument, else the smallest
    of the folder's own limit (`sentence_bert_config.json` first, then `tokenizer_config.json`) and
    `table_length`, the longest text that the position table holds.
    Errors: ConfigError naming the missing or broken file; ValueError for a `max_length` that is too
    small for the special tokens or above `table_length`.
    """

    def __init__(
        self,
        folder: str | Path,
        max_length: int | None = None,
        table_length: int | None = None,
        lower_case: bool = False,
    ):
        self.folder = Path(folder)
        config_path = self.folder / "tokenizer_config.json"
        config = read_json(config_path)
        self.backend = _load(self.folder, config)
        self.backend.no_padding()
        self.backend.no_truncation()
        _follow_config(self.backend, config)
        if lower_case:
            _lower_case_first(self.backend)
        self.truncation_side = config.get("truncation_side", "right")
        if self.truncation_side not in ("left", "right"):
            raise ConfigError(
                f"{config_path}: truncation_side {self.truncation_side!r} is not left or right"
            )
        names = config.get("model_input_names")
        self.gives_types = names is None or "token_type_ids" in names
        self.table_length = table_length
        self._special_ids = {
            token_id
            for token_id, token in self.backend.get_added_tokens_decoder().items()
            if token.special
        }
        self.max_length = self._folder_limit(config) if max_length is None else max_length

    @property
    def max_length(self) -> int | None:
        """Longest text in tokens, special ones included; None for no limit."""
        return self._max_length

    @max_length.setter
    def max_length(self, value: int | None) -> None:
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"max_length must be a whole number or None, got {value!r}")
            # Below its special tokens the library silently truncates nothing at all.
            smallest = self.backend.num_special_tokens_to_add(False) + 1
            largest = self.table_length or _NO_LIMIT
            if not smallest <= value <= largest:
                raise ValueError(
                    f"max_length is {value}; allowed for this model: {smallest} to {largest} tokens"
                )
            self.backend.enable_truncation(value, direction=self.truncation_side)
        else:
            if self.table_length is not None:
                raise ValueError(
                    f"max_length is None, but this model's position table ends at "
                    f"{self.table_length} tokens"
                )
            self.backend.no_truncation()
        self._max_length = value

    def __call__(self, texts: list, first_index: int = 0) -> Tokens:
        """A list of N texts, or of (text, text) pairs -> `Tokens`. Empty texts are fine.

        TypeError names the index of an item that is no text; ValueError that of a text which is not
        valid Unicode, or of a pair when the limit leaves no room for two texts. Named indices count
        from `first_index`.
        """
        if not isinstance(texts, list):
            raise TypeError(f"texts must be a list, got {type(texts).__name__}")
        check_texts(texts, first_index)
        self._check_pairs(texts, first_index)
        try:
            encodings = self.backend.encode_batch_fast(texts)
        except (TypeError, UnicodeError):
            _raise_for_bad_unicode(texts, first_index)
            raise
        type_ids = [e.type_ids for e in encodings] if self._needs_types(texts) else None
        return Tokens(
            ids=[e.ids for e in encodings],
            type_ids=type_ids,
            truncated=tuple(i for i, e in enumerate(encodings) if e.overflowing),
        )

    def prompt_length(self, prompt: str) -> int:
        """Tokens at the front of a text that `prompt` takes, the leading special token included."""
        ids = self.backend.encode(prompt).ids
        return len(ids) - (bool(ids) and ids[-1] in self._special_ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Token ids of one text -> text, special tokens left out."""
        return self.backend.decode(list(ids))

    def __repr__(self) -> str:
        return f"Tokenizer({str(self.folder)!r}, max_length={self.max_length})"

    def _folder_limit(self, config: dict) -> int | None:
        own = read_json(self.folder / "sentence_bert_config.json").get("max_seq_length")
        if own is None:
            own = config.get("model_max_length")
        limits = [int(n) for n in (own, self.table_length) if n is not None and 0 < n < _NO_LIMIT]
        return min(limits) if limits else None

    def _needs_types(self, texts: list) -> bool:
        return self.gives_types and any(not isinstance(item, str) for item in texts)

    def _check_pairs(self, texts: list, first_index: int) -> None:
        smallest = self.backend.num_special_tokens_to_add(True) + 1
        if self.max_length is None or self.max_length >= smallest:
            return
        for index, item in enumerate(texts, first_index):
            if not isinstance(item, str):
                raise ValueError(
                    f"texts[{index}] is a pair; max_length {self.max_length} has no room for one"
                )


def check_texts(texts: list, first_index: int = 0) -> None:
    """TypeError naming the first item that is neither a string nor a pair (tuple) of strings."""
    for index, item in enumerate(texts, first_index):
        if isinstance(item, str):
            continue
        pair = isinstance(item, tuple) and len(item) == 2
        if not pair or not all(isinstance(part, str) for part in item):
            shown = f"{type(item).__name__} {item!r}"[:80]
            raise TypeError(f"texts[{index}] must be a string, or a pair of strings, got {shown}")


def _load(folder: Path, config: dict):
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "vocab.txt").is_file():
            return _word_piece(folder / "vocab.txt", config)
        raise ConfigError(
            f"there is no {path}; write it with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        return Backend.from_file(str(path))
    except Exception as error:
        # The library raises bare Exception on every kind of broken file.
        raise ConfigError(f"{path} is not a readable tokenizer: {error}") from None


def _word_piece(path: Path, config: dict):
    """The tokenizer of a BERT folder from before `tokenizer.json` existed."""
    from tokenizers.implementations import BertWordPieceTokenizer
    from tokenizers.models import WordPiece

    built = BertWordPieceTokenizer(
        vocab=WordPiece.read_file(str(path)),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    # The class wraps the tokenizer proper, which is what a tokenizer.json gives.
    return built._tokenizer


def _follow_config(backend, config: dict) -> None:
    """BERT's normaliser settings of `tokenizer_config.json` win over those in `tokenizer.json`,
    which transformers has always done and some folders rely on."""
    from tokenizers.normalizers import BertNormalizer

    if not isinstance(backend.normalizer, BertNormalizer):
        return
    names = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    for key, name in names.items():
        if key in config:
            setattr(backend.normalizer, name, config[key])


def _lower_case_first(backend) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    present = json.loads(backend.to_str()).get("normalizer") or {}
    parts = present.get("normalizers", [present])
    if any(part.get("type") == "Lowercase" or part.get("lowercase") for part in parts):
        return
    rest = [backend.normalizer] if backend.normalizer is not None else []
    backend.normalizer = Sequence([Lowercase(), *rest])


def _raise_for_bad_unicode(texts: list, first_index: int) -> None:
    for index, item in enumerate(texts, first_index):
        for part in (item,) if isinstance(item, str) else item:
            try:
                part.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"texts[{index}] is not valid Unicode: {error}") from None
