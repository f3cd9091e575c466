"""Where randomness begins: a seed is the user's, to replay what was recorded, or fresh from the operating system."""

from __future__ import annotations

import secrets

_BITS = 64


def fresh_seed() -> int:
    """A seed that nobody can foresee; whoever draws with it records it."""
    return secrets.randbits(_BITS)


def seed_or_fresh(seed: int | None) -> int:
    """The seed itself, or a fresh one where there is none."""
    return fresh_seed() if seed is None else seed
