"""The page at / of the HTTP port: plain HTML, without script."""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .4rem .8rem; text-align: left; border-bottom: 1px solid #8886; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.degraded { font-weight: bold; color: #c22; }
"""
_KIB = 1024


def index_page(told: dict[str, Any]) -> str:
    """What the JSON at the same address tells, as a page."""
    rows = "".join(_row(bucket) for bucket in told["buckets"])
    state = "degraded" if any(bucket["status"] != "ok" for bucket in told["buckets"]) else "ok"
    table = (
        "<div class=wide><table><thead><tr><th scope=col>Bucket<th scope=col>State"
        "<th scope=col class=number>Items<th scope=col class=number>Not on disk yet"
        "<th scope=col class=number>In memory<th scope=col class=number>On disk<th scope=col>Vbuckets"
        f"</thead><tbody>{rows}</tbody></table></div>"
    )
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>headrace node {escape(told['address'])}</title><style>{_STYLE}</style>"
        f"<h1>headrace node</h1>"
        f"<p><span class={state}>{state}</span>: {escape(told['address'])}, version {escape(told['version'])}, "
        f"up {_duration(told['uptime_s'])}, {_number(told['connections'], 'connection')}</p>"
        f"{table if rows else '<p>There is no bucket that you may see.</p>'}"
        '<p><a href="/health">health</a>, <a href="/metrics">metrics</a>; '
        "this page as JSON: ask with <code>Accept: application/json</code>.</p></html>\n"
    )


def _row(bucket: dict[str, Any]) -> str:
    why = f"<br>{escape(bucket['why'])}" if bucket["why"] else ""
    vbuckets = ", ".join(f"{count} {state}" for state, count in bucket["vbuckets"].items() if count)
    return (
        f"<tr><th scope=row>{escape(bucket['name'])}<td class={bucket['status']}>{bucket['status']}{why}"
        f"<td class=number>{bucket['items']:,}<td class=number>{_number(bucket['persist_lag_seqnos'], 'seqno')}"
        f"<td class=number>{_size(bucket['resident_bytes'] + bucket['waiting_bytes'])}"
        f"<td class=number>{_size(bucket['store_bytes'])}<td>{vbuckets}"
    )


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} TiB"


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"
