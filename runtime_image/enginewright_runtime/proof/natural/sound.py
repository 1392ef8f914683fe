"""A sound like speech: syllables of a voice whose pitch moves, consonants and pauses."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

RATE: Final = 16000  # samples per second of nearly all models of speech
HEARD: Final = (50.0, 2000.0)  # Hz, between which a voice has its pitch
_SHIFT: Final = 0.13  # seconds between the beginnings of two pieces, so that short ones differ too
_SYLLABLE: Final = 0.24  # seconds
_PAUSED: Final = 5  # every so many syllables one is silent
_LOWEST: Final = 110.0  # Hz, of the pitch
_HIGHEST: Final = 3800.0  # Hz, of a harmonic
_WIDTH: Final = 180.0  # Hz, of a formant
# first and second formant of five vowels, Hz: Peterson and Barney (1952), men
_VOWELS: Final = np.array([[730, 1090], [270, 2290], [300, 870], [530, 1840], [570, 840]], float)
_VIBRATO: Final = 0.04  # of the pitch
_VIBRATO_RATE: Final = 2 * np.pi * 5.0  # radians per second
_SEED: Final = 20240229

_Floats = NDArray[np.float64]


def draw_sound(length: int, number: int) -> NDArray[np.float32]:
    """Return piece `number` of the sound, of `length` samples from -1 to 1."""
    moments = np.arange(length) / RATE + number * _SHIFT
    syllables = np.floor(moments / _SYLLABLE).astype(np.int64)
    within = moments / _SYLLABLE - syllables
    speaks = syllables % _PAUSED != _PAUSED - 1
    vowel = np.sin(np.pi * np.clip((within - 0.2) / 0.8, 0, 1)) * speaks
    consonant = (within < 0.15) * (syllables % 2 == 0) * speaks
    noise = np.random.default_rng([_SEED, number]).normal(0, 1, length)
    pitch = _LOWEST * 2 ** (number % 3 / 2)
    sound = 0.5 * vowel * _sing(moments, syllables, pitch) + noise * (0.05 * consonant + 0.002)
    clipped: NDArray[np.float32] = np.clip(sound, -1, 1).astype(np.float32)
    return clipped


def _sing(moments: _Floats, syllables: NDArray[np.int64], pitch: float) -> _Floats:
    """Return harmonics of a pitch with vibrato, as loud as the vowels' formants have them."""
    turns = pitch * (moments - _VIBRATO / _VIBRATO_RATE * np.cos(_VIBRATO_RATE * moments))
    harmonics = np.arange(1, int(_HIGHEST / pitch) + 1)
    distance = (harmonics[:, np.newaxis, np.newaxis] * pitch - _VOWELS) / _WIDTH
    loudness = np.exp(-0.5 * distance**2) @ np.array([1.0, 0.5]) + 0.05 / harmonics[:, np.newaxis]
    loudness /= loudness.sum(axis=0)
    vowels = syllables % len(_VOWELS)
    total = np.zeros_like(moments)
    for harmonic, of_vowels in zip(harmonics, loudness, strict=True):
        total += of_vowels[vowels] * np.sin(2 * np.pi * harmonic * turns)
    return total
