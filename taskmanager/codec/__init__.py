"""Values to stored JSON text and back. The only place that knows msgspec."""
