"""The values that everything else speaks of: frozen, without I/O and without `await`."""
