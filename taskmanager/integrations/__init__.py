"""One flat file per framework. Nothing here is imported by the rest of the package."""
