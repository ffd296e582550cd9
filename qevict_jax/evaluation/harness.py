# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A model of lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness) with a compressed cache.

The harness needs no torch for this. It has no entry points for models, so `qevict eval harness` registers ours first.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]
from tqdm import tqdm

from qevict_jax.evaluation.caches import parse_caches
from qevict_jax.evaluation.continuations import score_continuations
from qevict_jax.generate import generate, padded_sizes
from qevict_jax.models import load_model
from qevict_jax.models.tokenizer import chat_template_source, read_json
from qevict_jax.sampling import Sampling
from qevict_jax.types import QEvictError

NAME = "qevict"
_DEFAULT_BUDGET = 0.2
_LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens")
_BEAMS = "num_beams"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")


@register_model(NAME)
class HarnessModel(TemplateLM):
    """A converted checkpoint with a cache, as the harness sees it."""

    def __init__(
        self,
        pretrained: str,
        preset: str | None = None,
        policy: str | None = None,
        dtype: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        device: str | None = None,
        **cache: Any,
    ):
        """Loads a checkpoint.

        Args:
            pretrained: a converted checkpoint.
            preset: settings of the cache to start from, as in `parse_caches`; default "tuned".
            policy: cache policy instead of a preset.
            dtype: of computation, as in `load_model`.
            batch_size: requests decoded together.
            max_batch_size: must be None.
            max_length: tokens of context and answer together; default the model's.
            max_gen_toks: the most tokens of an answer where the task does not say.
            device: not used, though the harness always names one; jax chooses the device, JAX_PLATFORMS changes it.
            **cache: fields of `CacheConfig`; a fraction as ``budget`` counts against each batch's own capacity.

        Raises:
            QEvictError: a setting is unknown, has no effect, or does not fit.
        """
        super().__init__()
        if preset is not None and policy is not None:
            raise QEvictError(f"preset={preset} and policy={policy} exclude each other")
        if max_batch_size is not None:
            raise QEvictError("--max_batch_size has no effect: there is no automatic batch size")
        spec = " ".join([preset or policy or "tuned", *(f"{name}={value}" for name, value in cache.items())])
        (self.cache,) = parse_caches([spec], [_DEFAULT_BUDGET], full=False)
        try:
            self.batch_size = int(batch_size)
        except ValueError:
            raise QEvictError(f"--batch_size {batch_size} must be an integer; there is no automatic one") from None
        if self.batch_size < 1 or max_gen_toks < 1:
            raise QEvictError(f"batch_size={batch_size} and max_gen_toks={max_gen_toks} must be at least 1")
        self._path = Path(pretrained)
        self._model = load_model(pretrained, dtype)
        if self._model.tokenizer is None:
            raise QEvictError(f"{pretrained} has no tokenizer")
        self._tokenizer = self._model.tokenizer
        context = self._model.config.max_position
        self.max_length = context if max_length is None else max_length
        if not 1 < self.max_length <= context:
            raise QEvictError(f"max_length={max_length} must lie in 2 .. {context}, the model's own")
        self.max_gen_toks = max_gen_toks

    @property
    def eot_token_id(self) -> int:
        """An id that ends generation."""
        return min(self._tokenizer.eos_ids, default=self._tokenizer.pad_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that is scored from its first token: BOS, or EOS in a model without BOS."""
        return self.eot_token_id if self._tokenizer.bos_id is None else self._tokenizer.bos_id

    @property
    def tokenizer_name(self) -> str:
        """The checkpoint, under which the harness stores encoded requests."""
        return str(self._path.resolve()).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The Jinja text of the model's template, which the harness only records."""
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise QEvictError(f"--apply_chat_template {chat_template}: the model has one template, without a name")
        return chat_template_source(self._path, read_json(self._path / "tokenizer_config.json"))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation; without a generation prompt it stays open after the last message's own words."""
        text = self._tokenizer.render(chat_history, add_generation_prompt)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"].strip()
        return text[: text.rindex(last) + len(last)]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids, with one BOS in front if the model uses one, unless ``add_special_tokens`` is False."""
        return self._tokenizer.encode(string, add_bos=add_special_tokens is not False)

    def tok_decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(tokens)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers, each cut at the first of its stop texts. Contexts that are too long lose their beginning.

        The n-th repeat of a request draws with its seed plus n.
        """
        groups: dict[tuple[str, int], list[int]] = {}
        repeats: Counter[str] = Counter()
        for index, request in enumerate(requests):
            # the harness asks again for a task's repeats; with the same seed they would be copies
            repeat = repeats[repr(request.args)]
            repeats[repr(request.args)] += 1
            groups.setdefault((repr(sorted(request.args[1].items())), repeat), []).append(index)
        answers: dict[int, str] = {}
        with tqdm(total=len(requests), disable=disable_tqdm, desc="generate_until") as bar:
            for (_, repeat), group in groups.items():
                settings = _GenerationSettings(requests[group[0]].args[1], self.max_gen_toks, repeat)
                room = self.max_length - settings.max_new_tokens
                if room < 1:
                    raise QEvictError(f"{settings.max_new_tokens} new tokens leave no room in {self.max_length}")
                prompts = {index: self.tok_encode(requests[index].args[0])[-room:] for index in group}
                for batch in self._batches(group, lambda index, prompts=prompts: len(prompts[index])):
                    longest = max(len(prompts[index]) for index in batch)
                    total = sum(padded_sizes(longest, settings.max_new_tokens, self._model.config.max_position))
                    results = generate(
                        self._model,
                        [prompts[index] for index in batch],
                        cache=self.cache.at(total),
                        sampling=settings.sampling,
                        max_new_tokens=settings.max_new_tokens,
                        stop=settings.stop,
                    )
                    for index, result in zip(batch, results, strict=True):
                        answers[index] = result.text
                        self.cache_hook.add_partial("generate_until", requests[index].args, result.text)
                    bar.update(len(batch))
        return [answers[index] for index in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, in windows of ``max_length`` tokens; each token is scored once."""
        windows, owners = [], []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            pairs = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length - 1, 1)
            for pair in map(make_disjoint_window, pairs):
                windows.append((None, *pair))
                owners.append(owner)
        scores = [0.0] * len(requests)
        for owner, (log_prob, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            scores[owner] += log_prob
        for request, score in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, score)
        return scores

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Scores continuations; contexts that are too long lose their beginning."""
        pairs = []
        for _, context, continuation in requests:
            room = self.max_length - len(continuation)
            if room < 1:
                raise QEvictError(f"a continuation of {len(continuation)} tokens does not fit {self.max_length}")
            pairs.append((context[-room:], continuation))
        found: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(pairs), disable=disable_tqdm, desc="loglikelihood") as bar:
            for batch in self._batches(range(len(pairs)), lambda index: sum(map(len, pairs[index]))):
                scored = score_continuations(
                    self._model, [pairs[index] for index in batch], self.cache.at, batch_size=self.batch_size
                )
                for index, score in zip(batch, scored, strict=True):
                    found[index] = score
                    if requests[index][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[index][0], score)
                bar.update(len(batch))
        return [found[index] for index in range(len(pairs))]

    def _batches(self, indices: Sequence[int], length: Any) -> Iterator[list[int]]:
        """Longest first, so that what does not fit is known at once and neighbours have like lengths."""
        ordered = sorted(indices, key=length, reverse=True)
        for start in range(0, len(ordered), self.batch_size):
            yield ordered[start : start + self.batch_size]


class _GenerationSettings:
    """The harness's generation arguments in our terms.

    Args:
        given: those of a request.
        max_gen_toks: the most tokens of an answer where they do not say.
        repeat: how often the request was there before; added to the seed.

    Raises:
        QEvictError: one is unknown, or asks for beam search.
    """

    def __init__(self, given: Mapping[str, Any], max_gen_toks: int, repeat: int):
        known = {"until", "do_sample", _BEAMS, *_LENGTH_NAMES, *_SAMPLING}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise QEvictError(
                f"generation arguments {', '.join(unknown)} are unknown; there are {', '.join(sorted(known))}"
            )
        if given.get(_BEAMS) not in (None, 1):
            raise QEvictError(f"{_BEAMS}={given[_BEAMS]}: there is no beam search; {_BEAMS}=1 works")
        lengths = [int(given[name]) for name in _LENGTH_NAMES if given.get(name) is not None]
        self.max_new_tokens = lengths[0] if lengths else max_gen_toks
        until = given.get("until") or []
        self.stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
        numbers = {name: given[name] for name in _SAMPLING if given.get(name) is not None}
        numbers["seed"] = (numbers.get("seed", 0) + repeat) % 2**32
        # the harness's tasks name a temperature beside do_sample=False
        self.sampling = Sampling(**numbers) if given.get("do_sample", "temperature" in numbers) else Sampling()


def hand_over(arguments: Sequence[str]) -> None:
    """Runs the harness's own command line with our model registered.

    Args:
        arguments: of ``lm-eval``, with or without its subcommand; ``run`` gets ``--model qevict``.

    Raises:
        QEvictError: they name another model.
    """
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    words = list(arguments)
    command = words.pop(0) if words and words[0] in ("run", "ls", "validate") else "run"
    if command == "run":
        names = {word.partition("=")[0] for word in words}
        if names & {"--model", "-M"}:
            raise QEvictError("leave --model out, it is this library's; name a checkpoint: --model_args pretrained=DIR")
        if "--device" in names:
            raise QEvictError("--device has no effect: jax chooses the device, JAX_PLATFORMS changes it")
        words = ["--model", NAME, *words]
    # its bootstrap forks processes, which hang beside the threads of jax
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    before = sys.argv
    sys.argv = ["lm-eval", command, *words]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
