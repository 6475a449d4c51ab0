"""``quire export``: what torch has written, or has in memory, as a directory that Quire loads."""
