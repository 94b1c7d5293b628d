"""Runs user code and settles what became of it: memory on one side, the store's promise on the other."""
