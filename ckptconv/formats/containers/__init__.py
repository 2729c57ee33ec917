"""Containers that several formats share: zip archives and msgpack."""
