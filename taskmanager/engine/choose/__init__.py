"""Decides which task starts next, within the limits of lanes, queues and memory."""
