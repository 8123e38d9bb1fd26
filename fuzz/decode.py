"""Fuzz target: any bytes, in any pieces and any dialect, give messages or one RemoteProtocolError.

    python fuzz/decode.py -max_total_time=30          libFuzzer's options; `make fuzz` runs this
    python fuzz/decode.py crash-1234                  one input again

The first byte of an input chooses the dialect, the second how the rest is cut; `properties` says what holds.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

with atheris.instrument_imports(include=["fuzz", "headrace"]):
    from fuzz.properties import one_input

if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
