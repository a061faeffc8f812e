"""Names that nothing else has."""

from __future__ import annotations


def fresh_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, or the first free `wanted.N`; it is taken from now on."""
    found, count = wanted, 0
    while found in taken:
        count += 1
        found = f"{wanted}.{count}"
    taken.add(found)
    return found
