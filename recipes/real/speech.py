"""Speech with known word times, by Debian's espeak-ng: `apt-get install espeak-ng`.

The library reports when each word begins in the sound that it makes, so nothing has to be aligned by ear or by another
model. Sentences are drawn from a small grammar, the same for the same seed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from wheels import CannotBeHad

RATE = 16_000  # samples a second, as Whisper hears
RETRIEVE, UTF8, WORD, END = 1, 1, 1, 0  # from espeak-ng's speak_lib.h
VOICES = ("en-us", "en-gb")
PLACES = ("the garden", "the kitchen", "a small village", "the old station", "the market", "a quiet street")
PEOPLE = ("my brother", "the teacher", "a young doctor", "the farmer", "our neighbor", "the captain")
ACTIONS = ("bought some bread", "lost a red umbrella", "found an empty box", "sang a long song", "read the newspaper")
TIMES = ("yesterday", "on Monday", "last summer", "this morning", "in October")


class _Event(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True)
class Spoken:
    """A sentence that was spoken: its words, the second at which each begins, and the sound. espeak-ng joins a few
    short words, such as `in the`; the time of the second is then not a number."""

    text: str
    words: tuple[str, ...]
    begins: tuple[float, ...]
    sound: np.ndarray

    @property
    def seconds(self) -> float:
        return len(self.sound) / RATE


def draw_sentences(count: int, seed: int) -> list[str]:
    """Draws different sentences."""
    chance, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        who, what, where, when = (chance.choice(each) for each in (PEOPLE, ACTIONS, PLACES, TIMES))
        found[f"{who[0].upper()}{who[1:]} {what} in {where} {when}."] = None
    return list(found)


class Speaker:
    """espeak-ng, as a library."""

    def __init__(self) -> None:
        name = ctypes.util.find_library("espeak-ng")
        if name is None:
            raise CannotBeHad("espeak-ng is not installed: apt-get install espeak-ng")
        self.library = ctypes.CDLL(name)
        self.rate = self.library.espeak_Initialize(RETRIEVE, 500, None, 0)
        self.sound: list[np.ndarray] = []
        self.events: list[tuple[int, float]] = []
        self.callback = _Callback(self._collect)
        self.library.espeak_SetSynthCallback(self.callback)

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self.sound.append(np.ctypeslib.as_array(samples, (count,)).copy())
        place = 0
        while events[place].kind != END:
            if events[place].kind == WORD:
                self.events.append((events[place].text_position, events[place].audio_position / 1000))
            place += 1
        return 0

    def say(self, text: str, voice: str = VOICES[0], speed: int = 150) -> Spoken:
        """Speaks a sentence, at so many words a minute."""
        from scipy.signal import resample_poly

        self.sound, self.events = [], []
        self.library.espeak_SetVoiceByName(voice.encode())
        self.library.espeak_SetParameter(1, speed, 0)
        given = text.encode()
        self.library.espeak_Synth(given, len(given) + 1, 0, 1, 0, UTF8, None, None)
        self.library.espeak_Synchronize()
        whole = np.concatenate(self.sound).astype(np.float32) / 2**15
        sound = resample_poly(whole, RATE, self.rate).astype(np.float32)
        known, place, begins = dict(self.events), 1, []
        words = tuple(text.split())
        for word in words:
            begins.append(known.get(place, math.nan))
            place += len(word) + 1
        return Spoken(text, words, tuple(begins), sound)
