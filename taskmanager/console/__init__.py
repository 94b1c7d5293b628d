"""What a manager looks like on a terminal: rich views of frozen values."""
