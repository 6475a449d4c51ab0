"""``quire bench``: how fast a server, an engine or a start is."""
