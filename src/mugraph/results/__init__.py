"""What an optimization returns: the result as data and as a callable, in words, and on disk."""
