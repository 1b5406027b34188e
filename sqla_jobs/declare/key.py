"""Idempotency keys: validated, and shortened when long.

The key is exactly the text that the job's function returned: nothing is normalised, so
``"é"`` composed and decomposed are two keys, and so are one instant in two zones when
they are written differently. It is the same in every process and Python version.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from sqla_jobs.declare.text import bad_character
from sqla_jobs.exc import IdempotencyKeyRequiredError, PayloadError

MAX_KEY_BYTES: Final = 200
"""Keys longer than this many bytes of UTF-8 are stored as a prefix and a digest."""

_PREFIX_BYTES: Final = 120
_HASHED: Final = re.compile(r"~sha256:[0-9a-f]{64}\Z")


def key_text(value: object, *, job: str) -> str:
    """Return the stored text of *value*, the idempotency key that *job* was given.

    Up to 200 bytes are stored as they are. A longer key becomes its first 120 bytes
    (cut between characters), ``~sha256:`` and the digest of the whole; so does a key
    that itself ends like one of those, so that none can be forged. ``None``, ``""`` and
    other types raise :exc:`.IdempotencyKeyRequiredError`; NUL and lone surrogates
    raise :exc:`.PayloadError`.
    """
    if not isinstance(value, str):
        raise IdempotencyKeyRequiredError(job, f"returned {_kind(value)}")
    text = str.__str__(value)  # a StrEnum's value, whatever its own __str__ says
    if not text:
        raise IdempotencyKeyRequiredError(job, "returned an empty string")
    bad = bad_character(text)
    if bad is not None:
        raise PayloadError("idempotency_key", f"contains {bad}")
    raw = text.encode()
    if len(raw) <= MAX_KEY_BYTES and _HASHED.search(text) is None:
        return text
    prefix = raw[:_PREFIX_BYTES].decode(errors="ignore")
    return f"{prefix}~sha256:{hashlib.sha256(raw).hexdigest()}"


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
