"""Types of flags: each function parses the text of a value, or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tfbig.choices import DIRECTIONS, TISSUE_METHODS, UNET_STRIDE
from tfbig.cli.settings import choices
from tfbig.cli.settings.choices import STORED, WHOLE
from tfbig.system.budget import parse_bytes


class WrongValue(ValueError):
    """Raised with a message that says what is wrong with a value."""


def count(text: str) -> int:
    """Parse a whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise WrongValue(f"'{text}' must be at least 1")
    return number


def split_share(text: str) -> int:
    """Parse the share of a split, a whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise WrongValue(
            f"'{text}' must be at least 1, because a run trains, validates and tests. To choose the split of each "
            "item, give the table a column split with train, val and test"
        )
    return number


def count_from_zero(text: str) -> int:
    """Parse a whole number, 0 or more."""
    return 0 if text == "0" else count(text)


def two_or_more(text: str) -> int:
    """Parse a whole number, 2 or more."""
    number = count(text)
    if number < 2:
        raise WrongValue(f"'{text}' must be at least 2")
    return number


def positive(text: str) -> float:
    """Parse a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise WrongValue(f"'{text}' must be a positive number")
    return number


def above_one(text: str) -> float:
    """Parse a number above 1."""
    number = float(text)
    if not 1 < number < float("inf"):
        raise WrongValue(f"'{text}' must be above 1")
    return number


def share(text: str) -> float:
    """Parse a share from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise WrongValue(f"'{text}' must be a share from 0 to 1")
    return number


def from_zero(text: str) -> float:
    """Parse a number that is not negative."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise WrongValue(f"'{text}' must be 0 or more")
    return number


def byte_size(text: str) -> str:
    """Check a number of bytes such as 512MB, and return it as it is."""
    try:
        parse_bytes(text)
    except ValueError as error:
        raise WrongValue(str(error)) from None
    return text


def byte_size_or_zero(text: str) -> str:
    """Check a number of bytes, or 0, and return it as it is."""
    return text if text == "0" else byte_size(text)


def tissue(text: str) -> str:
    """Accept a way to find tissue, or the path of outlines."""
    if text not in choices.TISSUE and not Path(text).exists():
        raise WrongValue(
            f"'{text}' is neither one of {', '.join(choices.TISSUE)} nor a GeoJSON file or a folder of them"
        )
    return text


def tissue_or_masks(text: str) -> str:
    """Accept a way to find the tissue of slides, or the path of masks."""
    if text not in TISSUE_METHODS and not Path(text).exists():
        raise WrongValue(
            f"'{text}' is neither one of {', '.join(TISSUE_METHODS)} nor a mask or a folder of masks"
        )
    return text


def shard(text: str) -> str:
    """Check a shard such as 0/8, and return it as it is."""
    index, _, number = text.partition("/")
    if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
        raise WrongValue(f"'{text}' is not I/N with I from 0 to N - 1, such as 0/8")
    return text


def sha256(text: str) -> str:
    """Check a SHA-256 in hexadecimal digits, and return it in lower case."""
    digits = text.lower()
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise WrongValue(f"'{text}' is not a SHA-256 of 64 hexadecimal digits")
    return digits


def crop(text: str) -> str:
    """Check rows x columns of a crop for the gigapixel U-Net, or whole, and return them."""
    if text == WHOLE:
        return text
    try:
        rows, columns = crop_size(text.lower())
    except ValueError:
        raise WrongValue(f"'{text}' is not rows x columns, e.g. 1024x2048, or whole") from None
    if min(rows, columns) < UNET_STRIDE or rows % UNET_STRIDE or columns % UNET_STRIDE:
        raise WrongValue(
            f"'{text}': both must be multiples of {UNET_STRIDE}, the stride of the network"
        )
    return f"{rows}x{columns}"


def crop_of_32(text: str) -> str:
    """Accept rows x columns, both multiples of 32."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(
        each.isdecimal() and int(each) and int(each) % 32 == 0 for each in parts
    ):
        raise WrongValue(f"{text}: expected rows x columns, multiples of 32, such as 256x256")
    return text.lower()


def up_to_five(text: str) -> int:
    """Parse a whole number from 1 to 5."""
    number = count(text)
    if number > 5:
        raise WrongValue(f"{text}: expected 1 to 5")
    return number


def plane(text: str) -> int | str:
    """Parse the number of a plane, or `max`."""
    return text if text == "max" else count_from_zero(text)


def crop_size(text: str) -> tuple[int, int]:
    """Parse `"1024x2048"` as `(1024, 2048)`."""
    rows, columns = (int(side) for side in text.split("x"))
    return rows, columns


def box(text: str) -> str:
    """Check planes x rows x columns of a crop of volumes, or whole, and return them."""
    if text == WHOLE:
        return text
    return "x".join(map(str, _three(text, "planes x rows x columns, e.g. 96x96x96, or whole")))


def stride(text: str) -> str:
    """Check the stride of a stage along planes, rows and columns, such as 1x2x2, or one number for all."""
    text = f"{text}x{text}x{text}" if text.isdecimal() else text
    return "x".join(map(str, _three(text, "a stride along planes, rows and columns, e.g. 1x2x2")))


def box_size(text: str) -> tuple[int, int, int]:
    """Parse `"96x128x128"` as `(96, 128, 128)`."""
    planes, rows, columns = (int(side) for side in text.split("x"))
    return planes, rows, columns


def _three(text: str, expected: str) -> tuple[int, int, int]:
    """Parse three whole numbers above 0, separated by x."""
    try:
        sizes = box_size(text.lower())
    except ValueError:
        raise WrongValue(f"'{text}' is not {expected}") from None
    if min(sizes) < 1:
        raise WrongValue(f"'{text}': all must be at least 1")
    return sizes


def orientation(text: str) -> str:
    """Check directions of the patient along planes, rows and columns, such as SAR, or stored."""
    code = text.upper()
    if text == STORED:
        return text
    named = [pair for letter in code for pair in DIRECTIONS if letter in pair]
    if len(code) == 3 and sorted(named) == sorted(DIRECTIONS):
        return code
    raise WrongValue(
        f"'{text}' is not {STORED}, nor three letters, one of R and L, one of A and P, one of S and I, such as SAR"
    )


def sampling(text: str) -> int | float:
    """Parse a share with a decimal point, or a number of patches."""
    return float(text) if "." in text else count(text)


def inner_steps(text: str) -> int | str:
    """Parse a number of steps, or all."""
    return text if text == "all" else count(text)


EXPECTED: Final[dict[Callable[[str], Any], str]] = {
    int: "a whole number",
    float: "a number",
    count: "a whole number, 1 or more",
    split_share: "the share of a split, a whole number, 1 or more",
    count_from_zero: "a whole number, 0 or more",
    two_or_more: "a whole number, 2 or more",
    positive: "a number above 0",
    above_one: "a number above 1",
    share: "a share from 0 to 1",
    from_zero: "a number that is not negative",
    up_to_five: "a number from 1 to 5",
    plane: "the number of a plane, or `max`",
    sampling: "a share with a decimal point, or a number of patches",
    inner_steps: "a number of steps, or all",
}
"""What is expected where the text is not even a number."""
