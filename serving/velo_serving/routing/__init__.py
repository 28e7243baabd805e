"""A request on its way to all shards of a collection, and their replies on the way to one answer."""
