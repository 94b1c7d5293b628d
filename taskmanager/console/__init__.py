"""What there is to see of one database: told in frozen values here, drawn for a terminal in `terminal/`."""
