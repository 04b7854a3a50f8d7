"""Midline and llama.cpp in turn on the same file, prompts and threads. Imports torch.

Each repetition has prompts of its own that both are given, and the ratio of the medians counts. It means little on a
machine that has other work: the peer's threads spin while they wait for each other, so it suffers more.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.bench.code_samples import CodeSample, Typing, code_samples, typing_at
from engine.bench.llama_server import running_server, said_by
from engine.bench.peer_rows import BARS, MS, TOKENS_PER_S, PeerRow, compared
from engine.bench.peer_sides import Answer, MidlineSide, PeerSide, TokenIds, without_drafts
from engine.bench.report import percentile
from engine.bench.settings import PeersSettings, is_asked_comparison
from engine.bench.subject import open_subject
from engine.bench.turns import Turn, Turns
from engine.cache.prefix_index import common_length
from engine.checkpoint.store import resolve_model
from engine.config import PROFILES, EngineConfig
from engine.engine import Engine
from engine.fim import FimFamily, family_named
from engine.info import EngineInfo

Say = Callable[[str], None]

_CONTEXT_TOKENS = 4096
_SLOT_TOKENS = 256  # of each of the peer's requests that run together
_PREFILL_TOKENS = (512, 16)
_DECODE_PROMPT_TOKENS = 256
_CODE_PROMPT_TOKENS = 400
_COLD_TOKENS = 1200
_TOGETHER_PROMPT_TOKENS = 64
_FILE_TOKENS = (700, 300)  # before and behind the line that is typed
_MAX_CHARS_PER_TOKEN = 16  # more than any code has
_MAX_IDLE_SHARE = 0.05
_MAX_OTHERS_SHARE = 0.1

_SPECULATIONS = (
    "",
    "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8",
    "--spec-type ngram-map-k --spec-ngram-map-k-size-n 3 --spec-ngram-map-k-size-m 8",
    "--spec-type ngram-mod --spec-ngram-mod-n-match 4 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 8",
    "--spec-type ngram-cache",
)
"""The peer's ways of drafting that need no second model, and none. By default they wait for 12 to 24 equal tokens."""


@dataclass(frozen=True)
class PeerOutcome:
    """A model's comparison."""

    info: EngineInfo
    rows: list[PeerRow]
    remarks: list[str]
    peer: dict[str, Any]
    """Facts about the peer."""


def measure_peers(model: str, settings: PeersSettings, say: Say) -> PeerOutcome:
    """Raises ``ServiceError`` when the peer fails, ``ConfigError`` without enough code to write at."""
    resolved = resolve_model(model)
    with open_subject(model) as subject:
        vocabulary = subject.vocabulary
    config = EngineConfig(
        model=model,
        precision=settings.precision,
        device="cpu",
        fim_family=resolved.fim_family,
        max_context_tokens=_CONTEXT_TOKENS,
    )
    say(f"{model}: loading")
    engine = Engine.load(config)
    prompts = _Prompts(engine, vocabulary, settings)
    comparison = _Comparison(engine, prompts, settings, resolved.path, say)
    comparison.run(BARS.get(model, {}) if is_asked_comparison(settings) else {})
    return PeerOutcome(engine.info, comparison.rows, comparison.remarks, comparison.peer_facts)


class _Prompts:
    """Prompts, none of which is given twice."""

    def __init__(self, engine: Engine, vocabulary: Sequence[int], settings: PeersSettings) -> None:
        self.family: FimFamily = family_named(engine.info.fim_family)
        self._engine = engine
        self._rng = np.random.default_rng(settings.seed)
        self._vocabulary = np.asarray(vocabulary)
        count = settings.num_repetitions * (settings.num_code_prompts + 3) + settings.num_trial_prompts
        markers = (*self.family.markers, *self.family.file_markers)
        self._samples: Iterator[CodeSample] = iter(code_samples(settings.data, count, settings.seed, markers))

    def random(self, num_tokens: int, count: int) -> list[TokenIds]:
        """Tokens that mean nothing."""
        return [self._rng.choice(self._vocabulary, num_tokens).tolist() for _ in range(count)]

    def code(self, num_tokens: int, count: int) -> list[TokenIds]:
        """Real code up to where the body of a function begins."""
        return [self._tail(next(self._samples).before, num_tokens) for _ in range(count)]

    def typings(self, count: int) -> list[Typing]:
        """Lines to be typed into real files, of which a part around them is shown."""
        return [self._cut(typing_at(next(self._samples))) for _ in range(count)]

    def _cut(self, typing: Typing) -> Typing:
        num_before, num_behind = _FILE_TOKENS
        prefix = self._engine.detokenize(self._tail(typing.prefix, num_before))
        behind = self._engine.tokenize(typing.suffix[: num_behind * _MAX_CHARS_PER_TOKEN])
        suffix = self._engine.detokenize(behind[:num_behind])
        # a token may be half of a character
        return Typing(prefix.lstrip("\ufffd"), typing.indent, typing.line, suffix.rstrip("\ufffd"))

    def _tail(self, text: str, num_tokens: int) -> list[int]:
        return self._engine.tokenize(text[-num_tokens * _MAX_CHARS_PER_TOKEN :])[-num_tokens:]


class _Comparison:
    """The measurements of one model."""

    def __init__(self, engine: Engine, prompts: _Prompts, settings: PeersSettings, path: Path, say: Say) -> None:
        self.rows: list[PeerRow] = []
        self.remarks: list[str] = []
        self.peer_facts: dict[str, Any] = {}
        self._midline = MidlineSide(engine)
        self._num_threads = engine.info.num_threads
        self._prompts = prompts
        self._settings = settings
        self._program = Path(settings.server)
        self._path = path
        self._turns = Turns(settings.num_repetitions)
        self._say = say
        self._asked: Mapping[str, float] = {}

    def run(self, asked: Mapping[str, float]) -> None:
        """Measure everything, one process of the peer after the other; ``asked`` are ratios by metric."""
        self._asked = asked
        self._midline.use(without_drafts(PROFILES["completion"]))
        with self._peer() as peer:
            self._warm_up(peer)
            for num_tokens in _PREFILL_TOKENS:
                self._prefill(peer, num_tokens)
            self._decode(peer)
            self._cold(peer)
            self._keystrokes(peer)
        self._midline.use(PROFILES["completion"])
        trials = self._prompts.code(_CODE_PROMPT_TOKENS, self._settings.num_trial_prompts)
        speculation = self._settings.speculation or self._best_speculation(trials)
        self._say(f"the peer drafts with {speculation or 'nothing'}")
        with self._peer(speculation) as peer:
            self._code(peer, trials)
        self._midline.use(without_drafts(PROFILES["batch"]))
        with self._peer(num_slots=self._settings.num_together) as peer:
            self._together(peer, self._settings.num_together)
        self._conclude(speculation)

    @contextmanager
    def _peer(self, speculation: str = "", num_slots: int = 1) -> Iterator[PeerSide]:
        """The peer on the same file and threads, ready; without a second cache, which costs time and is not used."""
        num_tokens = _CONTEXT_TOKENS if num_slots == 1 else num_slots * _SLOT_TOKENS
        threads = f"-t {self._num_threads} -tb {self._num_threads}"
        options = f"{threads} -c {num_tokens} -np {num_slots} --device none --cache-ram 0 {speculation}"
        with running_server(self._program, ["-m", str(self._path), *shlex.split(options)]) as server:
            yield PeerSide(server)

    def _warm_up(self, peer: PeerSide) -> None:
        """What is built at first use is there afterwards."""
        (prompt,) = self._prompts.random(max(_PREFILL_TOKENS), 1)
        for side in (self._midline, peer):
            side.first_token(prompt)
            side.decode(prompt[:32], 4)

    def _prefill(self, peer: PeerSide, num_tokens: int) -> None:
        self._say(f"prefill of {num_tokens} tokens")
        ours, theirs = self._first_tokens(peer, self._prompts.random(num_tokens, self._turns.count))
        self._add(
            (f"prefill {num_tokens}", TOKENS_PER_S),
            [num_tokens / answer.wall_s for answer in ours],
            [num_tokens / answer.wall_s for answer in theirs],
            [num_tokens * 1e3 / ms for ms in _own_ms(theirs)],
        )

    def _cold(self, peer: PeerSide) -> None:
        self._say(f"cold first token behind {_COLD_TOKENS} tokens of code")
        ours, theirs = self._first_tokens(peer, self._prompts.code(_COLD_TOKENS, self._turns.count))
        self._add(("cold first token", MS), _wall_ms(ours), _wall_ms(theirs), _own_ms(theirs))

    def _first_tokens(self, peer: PeerSide, prompts: list[TokenIds]) -> list[list[Answer]]:
        return self._turns.take(
            Turn(self._midline, lambda number: self._midline.first_token(prompts[number])),
            Turn(peer, lambda number: peer.first_token(prompts[number])),
        )

    def _decode(self, peer: PeerSide) -> None:
        count = self._settings.num_tokens
        self._say(f"decoding {count} tokens")
        prompts = self._prompts.code(_DECODE_PROMPT_TOKENS, self._turns.count)
        ours, theirs = self._turns.take(
            Turn(self._midline, lambda number: self._midline.decode(prompts[number], count)),
            Turn(peer, lambda number: peer.decode(prompts[number], count)),
        )
        own = [(count - 1) / answer.own_decode_s for answer in theirs if answer.own_decode_s]
        self._add(("decode", TOKENS_PER_S), _rates([[a] for a in ours]), _rates([[a] for a in theirs]), own)
        same = [common_length(a.token_ids, b.token_ids) for a, b in zip(ours, theirs, strict=True)]
        self.remarks.append(f"decode: both began with the same {percentile(same, 50):.0f} of {count} tokens (median)")

    def _keystrokes(self, peer: PeerSide) -> None:
        """Each turn types one line, from its indentation on; what stands around it is cached when it begins."""
        self._say(f"first tokens of up to {self._settings.num_keystrokes} keystrokes in a line")
        typings = self._prompts.typings(self._turns.count)
        family = self._prompts.family
        turns = {
            "Midline": Turn(self._midline, self._typist(self._midline.keystroke, typings)),
            "/completion": Turn(peer, self._typist(lambda *at: peer.append_only(family, *at), typings)),
        }
        if family.markers:
            turns["/infill"] = Turn(peer, self._typist(peer.infill, typings))
        lines = dict(zip(turns, self._turns.take(*turns.values()), strict=True))
        answers = {name: [answer for line in typed for answer in line] for name, typed in lines.items()}
        ours = answers.pop("Midline")
        for name, theirs in answers.items():
            for percent in (50, 95):
                metric = (f"keystroke p{percent}, {name}", MS)
                self._add(metric, _wall_ms(ours), _wall_ms(theirs), _own_ms(theirs), percent)
        computed = {"Midline": ours, **answers}
        medians = (f"{name} {percentile([a.num_computed for a in some], 50):.0f}" for name, some in computed.items())
        self.remarks.append(f"keystroke: tokens of the prompt computed (median): {', '.join(medians)}")

    def _typist(
        self, keystroke: Callable[[Typing, int], Answer], typings: list[Typing]
    ) -> Callable[[int], list[Answer]]:
        def type_line(number: int) -> list[Answer]:
            typing = typings[number]
            keystroke(typing, 0)
            last = min(len(typing.line), self._settings.num_keystrokes)
            return [keystroke(typing, num_typed) for num_typed in range(1, last + 1)]

        return type_line

    def _best_speculation(self, trials: list[TokenIds]) -> str:
        """The options with which the peer is fastest on code, of those that it knows."""
        known = said_by(self._program, "--help")
        candidates = [text for text in _SPECULATIONS if all(word.isdigit() or word in known for word in text.split())]
        best, best_s = "", float("inf")
        for candidate in candidates[: self._settings.num_speculations]:
            self._say(f"trying how the peer drafts with {candidate or 'nothing'}")
            with self._peer(candidate) as peer:
                seconds = sum(peer.decode(prompt, self._settings.num_tokens).wall_s for prompt in trials)
            if seconds < best_s:
                best, best_s = candidate, seconds
        return best

    def _code(self, peer: PeerSide, trials: list[TokenIds]) -> None:
        """Several prompts a turn: how well drafting goes differs from one to the next."""
        count, num_prompts = self._settings.num_tokens, self._settings.num_code_prompts
        self._say(f"decoding {count} tokens behind code, drafting")
        prompts = self._prompts.code(_CODE_PROMPT_TOKENS, self._turns.count * num_prompts)
        for side in (self._midline, peer):  # both have seen the trials when it begins
            for prompt in trials:
                side.decode(prompt, count)

        def turn(side: MidlineSide | PeerSide) -> Turn[list[Answer]]:
            return Turn(
                side, lambda number: [side.decode(prompt, count) for prompt in prompts[number :: self._turns.count]]
            )

        ours, theirs = self._turns.take(turn(self._midline), turn(peer))
        self._add(("decode code, drafting", TOKENS_PER_S), _rates(ours), _rates(theirs))
        self.remarks.append(f"drafts that came true: Midline {_drafts(ours)}, llama.cpp {_drafts(theirs)}")

    def _together(self, peer: PeerSide, num_together: int) -> None:
        count = self._settings.num_tokens
        self._say(f"{num_together} requests of {count} tokens together")

        def turn(side: MidlineSide | PeerSide) -> Turn[float]:
            return Turn(side, lambda number: side.decode_together(prompts[number], count))

        prompts = [self._prompts.random(_TOGETHER_PROMPT_TOKENS, num_together) for _ in range(self._turns.count + 1)]
        for side in (self._midline, peer):
            side.decode_together(prompts[-1], 2)
        ours, theirs = self._turns.take(turn(self._midline), turn(peer))
        num_new = num_together * count
        our_rates, their_rates = ([num_new / seconds for seconds in some] for some in (ours, theirs))
        self._add((f"decode {num_together}-way", TOKENS_PER_S), our_rates, their_rates)

    def _add(
        self,
        metric: tuple[str, str],
        ours: Sequence[float],
        theirs: Sequence[float],
        own: Sequence[float] = (),
        percent: float = 50.0,
    ) -> None:
        self.rows.append(compared(metric, ours, theirs, own, percent, self._asked.get(metric[0])))

    def _conclude(self, speculation: str) -> None:
        shares = self._turns.idle_shares
        self.peer_facts = {
            "program": str(self._program),
            "version": " ".join(said_by(self._program, "--version").split()),
            "speculation": speculation,
            "idle_cpu_shares": shares,
            "other_programs_cpu_share": self._turns.others_share,
        }
        self.remarks.insert(
            0, f"llama.cpp: {self.peer_facts['version']}; drafting with {speculation or 'nothing, which is its best'}"
        )
        for name, share in shares.items():
            if share > _MAX_IDLE_SHARE:
                self.remarks.append(
                    f"the ratios are not to be trusted: {name} used {share:.0%} of a CPU while it rested"
                )
        others = self._turns.others_share
        if others > _MAX_OTHERS_SHARE:
            self.remarks.append(
                f"the ratios are not to be trusted: other programs used {others:.0%} of a CPU meanwhile"
            )


def _wall_ms(answers: Sequence[Answer]) -> list[float]:
    return [answer.wall_s * 1e3 for answer in answers]


def _own_ms(answers: Sequence[Answer]) -> list[float]:
    return [answer.own_prompt_s * 1e3 for answer in answers if answer.own_prompt_s]


def _rates(turns: Sequence[Sequence[Answer]]) -> list[float]:
    """Tokens per second of each turn."""
    return [sum(len(a.token_ids) for a in answers) / sum(a.wall_s for a in answers) for answers in turns]


def _drafts(turns: Sequence[Sequence[Answer]]) -> str:
    answers = [answer for turn in turns for answer in turn]
    return f"{sum(a.num_accepted for a in answers)} of {sum(a.num_drafted for a in answers)}"
