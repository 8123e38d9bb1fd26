"""A small airline for `headrace demo`: airports, flights and bookings, drawn from a seed, and a day's changes."""

import json
import random
from collections.abc import Iterator

_CITIES = (
    "Amsterdam", "Athens", "Bangkok", "Berlin", "Bogota", "Boston", "Cairo", "Chicago", "Dakar", "Delhi", "Dublin",
    "Geneva", "Hanoi", "Helsinki", "Istanbul", "Jakarta", "Karachi", "Kyiv", "Lagos", "Lima", "Lisbon", "London",
    "Madrid", "Manila", "Mumbai", "Nairobi", "Osaka", "Oslo", "Paris", "Perth", "Prague", "Quito", "Riga", "Rome",
    "Santiago", "Seoul", "Sofia", "Sydney", "Taipei", "Tokyo", "Toronto", "Tunis", "Vienna", "Warsaw", "Zagreb",
)  # fmt: skip
_FIRST = ("Ada", "Amir", "Ana", "Chen", "Dara", "Eli", "Femi", "Ines", "Jonas", "Kofi", "Lena", "Mei", "Noor", "Ravi")
_LAST = ("Abe", "Baker", "Costa", "Diaz", "Eriksen", "Fischer", "Gupta", "Haddad", "Ito", "Jansen", "Kim", "Lopez")
_STATES = ("scheduled", "boarding", "departed", "landed", "delayed")

Document = tuple[bytes, bytes]


class Airline:
    """Documents by number; what is drawn depends on the seed alone."""

    def __init__(self, bookings: int, *, seed: int = 7) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - a demonstration
        self._flights = max(bookings // 40, 1)
        self._bookings = bookings

    def documents(self) -> Iterator[Document]:
        """Everything that is there in the morning."""
        for number, city in enumerate(_CITIES):
            yield _document(f"airport::{number:03}", type="airport", city=city, gates=self._chance.randrange(8, 90))
        for number in range(self._flights):
            yield self.flight(number)
        for number in range(self._bookings):
            yield self.booking(number)

    def flight(self, number: int) -> Document:
        """One flight, as it is now."""
        from_, to = self._chance.sample(_CITIES, 2)
        return _document(
            f"flight::{number:05}",
            type="flight",
            **{"from": from_, "to": to},
            state=self._chance.choice(_STATES),
            seats=self._chance.choice((120, 180, 220, 320)),
            delay_minutes=max(0, int(self._chance.gauss(5, 15))),
        )

    def booking(self, number: int) -> Document:
        """One booking, as it is now."""
        chance = self._chance
        return _document(
            f"booking::{number:07}",
            type="booking",
            name=f"{chance.choice(_FIRST)} {chance.choice(_LAST)}",
            flight=f"flight::{chance.randrange(self._flights):05}",
            seat=f"{chance.randrange(1, 41)}{chance.choice('ABCDEF')}",
            price=round(chance.uniform(40, 900), 2),
            bags=chance.choice((0, 0, 1, 1, 2)),
        )

    def change(self) -> tuple[bytes, bytes | None]:
        """One thing that happens: a flight moves on, a seat is changed, somebody books, somebody cancels (None)."""
        chance = self._chance
        what = chance.random()
        if what < 0.3:  # noqa: PLR2004 - shares of what happens
            return self.flight(chance.randrange(self._flights))
        if what < 0.7:  # noqa: PLR2004
            return self.booking(chance.randrange(self._bookings))
        if what < 0.9:  # noqa: PLR2004
            self._bookings += 1
            return self.booking(self._bookings - 1)
        return self.booking(chance.randrange(self._bookings))[0], None


def _document(key: str, **fields: object) -> Document:
    return key.encode(), json.dumps(fields).encode()


__all__ = ["Airline"]
