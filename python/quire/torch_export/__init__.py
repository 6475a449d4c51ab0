"""``quire export``: what torch has written, or has in memory, as a directory that Quire loads."""

from quire.torch_export.exporter import export as export

__all__ = ["export"]
