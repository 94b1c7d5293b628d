"""The numbered scripts of a schema, `migrations/NNNN_name.sql` in the package of its database."""

from taskmanager.model.errors import StoreError


def scripts_of(package: str) -> list[tuple[int, str, str]]:
    """Return the number, the name and the text of each script of a package, in order.

    Raises `StoreError` if they are not installed.
    """
    from importlib import resources  # most starts find the newest schema, and are spared the 6 ms that this takes

    folder = resources.files(package) / "migrations"
    if not folder.is_dir():
        raise StoreError(
            f"the files of the schema are not installed: there is no {folder}; a program that is frozen into an "
            "executable needs them too (`pyinstaller --collect-data taskmanager`)"
        )
    found = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append((int(number), name, file.read_text("utf-8")))
    return sorted(found)
