"""What is written, how and when; what became of that, and who hears of it."""
