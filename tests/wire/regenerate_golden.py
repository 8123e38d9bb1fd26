"""Write tests/golden/explain anew: `python -m tests.wire.regenerate_golden` from the root of the repository.

Run it when a message or the wording of `headrace explain` changes, and read the difference before committing it: these
files are what reviewers see of a change to the catalogue.
"""

from tests.wire.explained import FOLDER, MARK, fresh


def main() -> None:
    """Replace every file."""
    groups: dict[str, list[str]] = {}
    for group, title, text in fresh():
        groups.setdefault(group, []).append(f"{MARK}{title}\n{text}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for group, parts in groups.items():
        (FOLDER / f"{group}.txt").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
