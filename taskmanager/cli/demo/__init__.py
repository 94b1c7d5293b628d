"""`taskmanager demo`: a program that works on files is stopped and started again, and every file is accounted for."""
