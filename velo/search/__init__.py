"""One call of a search: its request, the filters it meets, the library that answers it."""
