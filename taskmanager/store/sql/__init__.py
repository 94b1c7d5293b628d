"""The verbs of a store as functions over one connection: SQL that every database of ours is asked in."""
