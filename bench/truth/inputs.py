"""Natural inputs of the models: photographs from packages, drawn lines of text, voice, files and sentences."""

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

Array = NDArray[Any]
RATE: Final = 16_000  # of voice, in Hz
_LINES: Final = (
    "Hello World 2026", "PYTHON kubernetes", "The quick brown fox", "GPU 0.5 ms, 100%",
    "inference_model", "Total: $1,234.56", "ONNX Runtime", "jumps over lazy dog",
)  # fmt: skip
_SENTENCES: Final = (
    "a man is eating food", "someone is having a meal", "the stock market fell sharply on monday",
    "investors were worried about the economy", "a cat sleeps on the warm roof",
    "the kitten is resting in the sun", "how do i install the operator on a cluster",
    "deploy the service to production with one command", "she plays the violin in an orchestra",
    "the band recorded a new album",
)  # fmt: skip
_ARABIC: Final = (
    "ذهب الولد إلى المدرسة", "الكتاب على الطاولة", "هذا بيت كبير وجميل", "تشرق الشمس في الصباح",
    "أحب القهوة مع الحليب", "سافر أبي إلى المدينة أمس", "يقرأ الطالب الدرس كل يوم",
)  # fmt: skip
_HEBREW: Final = (
    "הילד הלך לבית הספר", "הספר נמצא על השולחן", "זה בית גדול ויפה", "השמש זורחת בבוקר",
    "אני אוהב קפה עם חלב", "אבי נסע אתמול לעיר", "שלום לכולם ותודה רבה",
)  # fmt: skip
# frequencies of the first three formants of vowels, in Hz
_VOWELS: Final = (
    (730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410),
)  # fmt: skip


def read_photos(folder: Path, names: Sequence[str]) -> list[Image.Image]:
    """Return photographs by file name."""
    return [Image.open(next(folder.rglob(name))).convert("RGB") for name in names]


def mirror(photo: Image.Image) -> Image.Image:
    """Return a photograph with left and right exchanged."""
    return ImageOps.mirror(photo)


def fit(photo: Image.Image, width: int, height: int, padding: int) -> Image.Image:
    """Return a photograph scaled into a frame, in its upper left corner, as detectors do it."""
    share = min(width / photo.width, height / photo.height)
    size = (max(1, int(photo.width * share)), max(1, int(photo.height * share)))
    frame = Image.new("RGB", (width, height), (padding,) * 3)
    frame.paste(photo.resize(size, Image.Resampling.BILINEAR))
    return frame


def to_tensor(
    image: Image.Image,
    *,
    scale: float = 255.0,
    mean: float = 0.0,
    std: float = 1.0,
    bgr: bool = False,
) -> Array:
    """Return [1, 3, height, width]."""
    pixels = np.asarray(image, np.float32)[..., :: -1 if bgr else 1]
    return np.ascontiguousarray(
        (((pixels / scale) - mean) / std).transpose(2, 0, 1)[None], np.float32
    )


def draw_lines(height: int = 48) -> list[Image.Image]:
    """Return images of one line of text each, as wide as it is, in several colours."""
    font = ImageFont.load_default(size=int(height * 0.7))
    images = []
    for number, text in enumerate(_LINES):
        width = int(font.getlength(text)) + 24
        image = Image.new("RGB", (width, height), (255 - number * 9, 250, 245 - number * 5))
        place = (12, int(height * 0.08))
        ImageDraw.Draw(image).text(place, text, fill=(number * 8, 10, 30), font=font)
        images.append(image)
    return images


def draw_scene(photo: Image.Image, seed: int, size: int = 416) -> Image.Image:
    """Return a photograph with a few turned words on it, as in a captcha."""
    rng = np.random.default_rng(seed)
    scene = photo.resize((size, size)).copy()
    font = ImageFont.load_default(size=46)
    for number in range(4):
        word = _LINES[(seed + number) % len(_LINES)].split()[0][:4]
        card = Image.new("RGBA", (150, 70), (0, 0, 0, 0))
        colour = tuple(int(item) for item in rng.integers(0, 255, 3))
        ImageDraw.Draw(card).text((10, 5), word, fill=(*colour, 255), font=font)
        card = card.rotate(float(rng.uniform(-25, 25)), expand=True)
        x, y = (number % 2) * size // 2, (number // 2) * size // 2
        place = (x + int(rng.integers(0, 40)), y + int(rng.integers(0, 80)))
        scene.paste(card, place, card)
    return scene


def speak(seconds: float, seed: int) -> Array:
    """Return a voice that says vowels with pauses: a glottal pulse train through three formants."""
    rng = np.random.default_rng(seed)
    count = int(seconds * RATE)
    sound = np.zeros(count)
    place = int(0.15 * RATE)
    while place < count:
        length = min(count - place, int(rng.uniform(0.18, 0.4) * RATE))
        sound[place : place + length] = _sing(length, rng)
        place += length + int(rng.choice([0.0, 0.0, 0.35]) * RATE)
    return (0.2 * sound + rng.normal(0, 0.002, count)).astype(np.float32)


def _sing(length: int, rng: np.random.Generator) -> Array:
    time = np.arange(length) / RATE
    pitch = rng.uniform(100, 220) * (1 + 0.04 * np.sin(2 * np.pi * 5 * time) - 0.1 * time)
    phase = np.cumsum(pitch) / RATE
    vowel = _VOWELS[int(rng.integers(len(_VOWELS)))]
    sound = np.zeros(length)
    for harmonic in range(1, 30):
        frequency = harmonic * pitch
        gain = sum(1 / (1 + ((frequency - formant) / 90) ** 2) for formant in vowel)
        sound += (gain + 0.02) / harmonic**0.5 * np.sin(2 * np.pi * harmonic * phase)
    edge = np.minimum(1, np.minimum(np.arange(length), np.arange(length)[::-1]) / (0.02 * RATE))
    return np.asarray(sound * edge / max(1e-9, float(np.abs(sound).max())))


def make_files() -> list[bytes]:
    """Return the beginnings of files of several types."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        # without the time of day
        entry = zipfile.ZipInfo("text.txt")
        archive.writestr(entry, " ".join(_SENTENCES) * 20, zipfile.ZIP_DEFLATED)
    picture = io.BytesIO()
    draw_lines()[0].save(picture, "PNG")
    photo = io.BytesIO()
    draw_lines()[1].save(photo, "JPEG")
    return [
        Path(__file__).read_bytes(),
        b"<!DOCTYPE html>\n<html><head><title>T</title></head><body><p>Hello</p></body></html>\n"
        * 30,
        json.dumps(
            [{"id": number, "text": text} for number, text in enumerate(_SENTENCES)]
        ).encode(),
        b'#include <stdio.h>\nint main(void) {\n    printf("%d\\n", 3);\n    return 0;\n}\n' * 30,
        b"SELECT id, name FROM users WHERE age > 3 ORDER BY name;\n" * 40,
        b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers: []\n" * 30,
        " ".join(_SENTENCES).encode() * 5,
        packed.getvalue(),
        picture.getvalue(),
        photo.getvalue(),
    ]


def spell_arabic(letters: dict[str, int]) -> list[list[int]]:
    """Return Arabic sentences as letters."""
    return [[letters[letter] for letter in sentence] for sentence in _ARABIC]


def spell_hebrew(space: int, alef: int) -> list[list[int]]:
    """Return Hebrew sentences as letters, numbered from that of alef."""
    return [
        [space if letter == " " else alef + ord(letter) - ord("א") for letter in sentence]
        for sentence in _HEBREW
    ]


def tokenize(vocabulary: dict[str, int]) -> list[list[int]]:
    """Return the sentences as WordPiece tokens, the longest match first."""
    return [
        [
            vocabulary["[CLS]"],
            *(token for word in sentence.split() for token in _split(word, vocabulary)),
            vocabulary["[SEP]"],
        ]
        for sentence in _SENTENCES
    ]


def _split(word: str, vocabulary: dict[str, int]) -> list[int]:
    tokens, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next(
            (end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary),
            0,
        )
        if not end:
            return [vocabulary["[UNK]"]]
        tokens.append(vocabulary[prefix + word[start:end]])
        start = end
    return tokens
