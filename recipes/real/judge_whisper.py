"""Judge: Whisper tiny.en's alignment heads. Its makers published which 8 of 24 cross heads tell when a word is spoken.

    python recipes/real/judge_whisper.py --out runs/real/whisper.json

The speech is espeak-ng's, with known word times. As the heads were picked for timing, every head is also judged by it:
how far the word times read off its attention alone are from the true ones. The encoder has no heads to rank here, so
each clip is heard once and only the decoder runs after that.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from methods import Trial, rank_by_all
from scoring import Score, score, table
from speech import Speaker, Spoken, draw_sentences
from torch import Tensor
from wheels import run
from whisper_tiny import ALIGNMENT, END, NO_TIMES, load

from headway.attach.from_transformers import subject_from_transformers
from headway.attach.readers import start_of
from headway.models import Trace
from headway.subjects.ragged import PADDING
from headway.subjects.runner import MEMORY
from headway.tasks import Problems
from headway.tasks.problems import Contrast

NOUNS = ("teacher", "farmer", "captain", "doctor")
"""each one token of GPT-2's vocabulary, after a blank"""
FRAME = 0.02
"""seconds for each position of the encoder"""


def read_heard(model: Any, source: Tensor, answer: Tensor) -> Tensor:
    """Runs the decoder on what the encoder heard."""
    written = torch.cat((torch.full_like(answer[:, :1], start_of(model)), answer[:, :-1].clamp(min=0)), dim=1)
    return model(encoder_outputs=(source,), decoder_input_ids=written, use_cache=False).logits


class Listener:
    """Turns sentences into problems: what the encoder heard, and the tokens to write."""

    def __init__(self) -> None:
        from transformers import WhisperFeatureExtractor

        self.model, self.tokenizer = load()
        self.speaker, self.features = Speaker(), WhisperFeatureExtractor()

    @torch.no_grad()
    def hear(self, clips: list[Spoken]) -> Tensor:
        pieces = []
        for clip in clips:
            given = self.features(clip.sound, sampling_rate=16_000, return_tensors="pt").input_features
            pieces.append(self.model.model.encoder(given).last_hidden_state)
        return torch.cat(pieces)

    def tokens(self, text: str) -> list[int]:
        return [NO_TIMES, *self.tokenizer(f" {text}").input_ids, END]

    def one_length(self, texts: list[str]) -> list[str]:
        """Selects the sentences with the most common number of tokens, as resampling needs donors as long."""
        counts = Counter(len(self.tokens(text)) for text in texts)
        return [text for text in texts if len(self.tokens(text)) == counts.most_common(1)[0][0]]

    def problems(self, texts: list[str]) -> tuple[list[Spoken], Problems]:
        clips = [self.speaker.say(text) for text in texts]
        rows = [self.tokens(text) for text in texts]
        longest = max(map(len, rows))
        answer = torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows])
        scored = answer != PADDING
        scored[:, 0] = False  # the token that says that there are no times
        return clips, Problems(self.hear(clips), answer, scored)

    def contrast(self, texts: list[str]) -> Contrast:
        """Makes pairs of sentences that differ in their second word."""
        sides: list[list[str]] = [[], []]
        for place, text in enumerate(texts):
            rest = text.split(" ", 2)[2]
            for side in (0, 1):
                sides[side].append(f"The {NOUNS[(place + side * (1 + place % 3)) % len(NOUNS)]} {rest}")
        clean, other = (self.problems(side)[1] for side in sides)
        clean, other = (Problems(each.source, each.answer[:, :3]) for each in (clean, other))
        return Contrast("word", 0, False, clean, other, place=2)


def errors_by_head(trial: Trial, clips: list[Spoken], listener: Listener) -> Tensor:
    """Returns the median error of word times in seconds, [head, clip], of each head's attention alone."""
    found = torch.zeros(len(trial.heads), len(clips))
    for number, clip in enumerate(clips):
        batch = trial.subject.runner.trim(trial.problems[number : number + 1])
        trace = Trace()
        with torch.no_grad():
            trial.subject.runner.run(batch, trace=trace)
        firsts, place = [], 1
        for word in clip.words:
            firsts.append(place)
            place += len(listener.tokenizer(f" {word}").input_ids)
        frames = int(clip.seconds / FRAME) + 1
        for row, head in enumerate(trial.heads):
            # the query that reads token i writes token i + 1; times are read where a token is read
            weights = trace.maps[head.site][0, head.number, 1 : place + 1, :frames]
            begins = align(weights.double().numpy())
            gaps = [abs(begins[first - 1] * FRAME - begin) for first, begin in zip(firsts, clip.begins, strict=True)]
            found[row, number] = float(np.nanmedian(gaps))
    return found


def align(weights: np.ndarray) -> list[int]:
    """Returns the frame at which each token begins, on the monotonic path with the largest sum of standardised weights
    (dynamic time warping)."""
    cost = -(weights - weights.mean(0)) / (weights.std(0) + 1e-9)
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    for row in range(rows):
        for column in range(columns):
            before = min(total[row, column], total[row, column + 1], total[row + 1, column])
            total[row + 1, column + 1] = cost[row, column] + before
    row, column, begins = rows, columns, [0] * rows
    while row and column:
        begins[row - 1] = column - 1
        steps = (total[row - 1, column - 1], total[row - 1, column], total[row, column - 1])
        move = int(np.argmin(steps))
        row, column = row - (move < 2), column - (move != 1)
    return begins


def judge(count: int, seed: int) -> tuple[dict[str, Score], dict[str, Any]]:
    listener = Listener()
    clips, problems = listener.problems(listener.one_length(draw_sentences(4 * count, seed))[:count])
    subject = subject_from_transformers(
        listener.model, problems, reader=read_heard, metric="loss", memory=4 * MEMORY, name="Whisper tiny.en"
    )
    heads = tuple(head for head in subject.heads if head.site.kind == "cross")
    true = frozenset(head for head in heads if (head.site.layer, head.number) in ALIGNMENT)

    def sharpest(maps: Tensor, batch: Problems) -> Tensor:
        return maps[:, :, 1:].amax(-1).mean(-1)  # without the query of the start token

    contrast = listener.contrast(draw_sentences(count // 2, seed + 1))
    trial = Trial(subject, problems, heads, true, contrast, sharpest)
    scores = rank_by_all(trial, seed)
    errors = errors_by_head(trial, clips, listener)
    scores["timing (its own purpose)"] = -errors
    truth = torch.tensor([head in true for head in heads])
    details = {
        head.label: {
            "published": head in true,
            "median_seconds_off": round(float(errors[row].median()), 3),
            **{name: round(float(values[row].mean()), 5) for name, values in scores.items()},
        }
        for row, head in enumerate(heads)
    }
    return {name: score([values], [truth], seed) for name, values in scores.items()}, details


def main() -> None:
    parser = argparse.ArgumentParser(description="Ranks Whisper's cross heads by every method.")
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/real/whisper.json"))
    options = parser.parse_args()
    rows, details = judge(options.clips, options.seed)
    print(table(rows))
    found = {"clips": options.clips, "seed": options.seed, "heads": details}
    found["methods"] = {name: row.to_json() for name, row in rows.items()}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run(main)
