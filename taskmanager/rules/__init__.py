"""Decisions: synchronous functions and containers that say what shall happen. No I/O, no `await`, no clock."""
