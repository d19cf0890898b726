"""Shared by several ops: headers of PTX and storage types, and tensor maps."""
