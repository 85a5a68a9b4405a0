"""The tokenizer: byte-level BPE, trained on the corpus itself, the same on every machine for the same text.

Called by `prepare` and by whoever decodes tokens. Any byte sequence of valid UTF-8 encodes and decodes to itself. A text that spells a
special token (`<|media_end|>`) gets ordinary tokens, so no document can forge an image or end itself.

Long runs without a border stay cheap: the splitting pattern caps every word at `WORD_CAP` characters, which bounds the merge loop, and
`encode` cuts a text into pieces of at most `PIECE_CHARACTERS` at a place where the pattern splits anyway, which bounds memory.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from samite_workloads.data.layout import CorpusError, SpecialTokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORD_CAP = 48
PIECE_CHARACTERS = 1 << 18
_PIECES_AT_ONCE = 8
SPECIAL_TOKENS = {
    "document_end": "<|end|>",
    "padding": "<|pad|>",
    "media_begin": "<|media_begin|>",
    "media_content": "<|media_content|>",
    "media_placeholder": "<|media_pad|>",
    "media_end": "<|media_end|>",
}
MINIMUM_VOCABULARY = 256 + len(SPECIAL_TOKENS)

# GPT-2's pattern with every repetition bounded: no word is longer than the cap, whatever the text.
_PATTERN = (
    rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}{{1,{WORD_CAP}}}| ?\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]{{1,{WORD_CAP}}}"
    rf"|\s{{1,{WORD_CAP}}}(?!\S)|\s{{1,{WORD_CAP}}}"
)
# A single line break between two visible characters: the pattern always splits on both sides of it.
_CLEAN_CUT = re.compile(r"(?<=\S\n)(?=\S)")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """A tokenizer of at most `vocab_size` entries (special tokens and 256 bytes included). Raises CorpusError for a vocabulary too small."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < MINIMUM_VOCABULARY:
        raise CorpusError(f"vocabulary of {vocab_size} is too small: bytes and special tokens alone need {MINIMUM_VOCABULARY}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path) -> "Tokenizer":
    """Read a tokenizer.json that has our special tokens. Raises CorpusError naming the file and what is wrong."""
    from tokenizers import Tokenizer

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot read the tokenizer: {error}") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for every malformed file
        raise CorpusError(f"{path}: not a tokenizers JSON file: {error}") from error
    special_tokens(tokenizer, str(path))
    return tokenizer


def special_tokens(tokenizer: "Tokenizer", place: str = "tokenizer") -> SpecialTokens:
    """Ids of our special tokens in `tokenizer`. Raises CorpusError with all that are missing."""
    found = {name: tokenizer.token_to_id(spelling) for name, spelling in SPECIAL_TOKENS.items()}
    ids = {name: token_id for name, token_id in found.items() if token_id is not None}
    missing = [spelling for name, spelling in SPECIAL_TOKENS.items() if name not in ids]
    if missing:
        raise CorpusError(f"{place}: has no token {', '.join(missing)}; add them as special tokens to its file")
    return SpecialTokens(**ids)


def encode(tokenizer: "Tokenizer", text: str) -> Iterator[list[int]]:
    """Token ids of `text`, a piece at a time; special tokens are never produced."""
    tokenizer.encode_special_tokens = True
    cut = pieces(text)
    while group := list(islice(cut, _PIECES_AT_ONCE)):
        # The batch form skips the character offsets, which cost as much as the tokens, and uses every core.
        for encoding in tokenizer.encode_batch_fast(group, add_special_tokens=False):
            yield encoding.ids


def pieces(text: str, cap: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut `text` into pieces of at most `cap` characters, at a clean line break in the second half of a piece where there is one."""
    start = 0
    while len(text) - start > cap:
        end = start + cap
        cut = None
        # Backwards in small steps: a clean cut is nearly always close to the end of the piece.
        for window_end in range(end, start + cap // 2, -4096):
            window_start = max(start + cap // 2, window_end - 4096)
            matches = [match.start() for match in _CLEAN_CUT.finditer(text, window_start, min(window_end + 1, len(text)))]
            if matches:
                cut = min(matches[-1], end)
                break
        end = cut or end
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
