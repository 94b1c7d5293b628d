"""Values to stored JSON text and back, and rows as users see them. The only place that knows msgspec."""
