"""The words of the library: frozen values without I/O and without `await`."""
