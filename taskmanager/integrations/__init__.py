"""One file per framework. The rest of the package imports nothing from here."""
