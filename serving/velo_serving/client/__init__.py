"""The client: blocking and awaited."""
