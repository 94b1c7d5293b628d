"""What comes from npm packages is what it says it is."""

from tests.vendored import STATIC, checksum, vendored


def test_vendored_files_are_those_of_their_packages() -> None:
    """Nobody has changed them here, and `python -m tests.vendored` compares the checksum with the package."""
    found = vendored()
    assert {each.file: each.sha256 for each in found} == {
        each.file: checksum((STATIC / each.file).read_bytes()) for each in found
    }
    ours = {"dashboard.css", "dashboard.js", "icon.svg", "VENDORED.md"}
    assert {path.name for path in STATIC.iterdir()} == ours | {each.file for each in found}


def test_scripts_evaluate_no_text() -> None:
    """The policy of the pages would refuse it, and so nothing must need it."""
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not [each for each in ("eval(", "new Function", "setAttribute('on", "document.write") if each in text]
